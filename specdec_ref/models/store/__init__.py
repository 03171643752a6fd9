"""Where models come from: the catalogue and what is fetched from it, GGUF files, folders in Hugging Face format."""
