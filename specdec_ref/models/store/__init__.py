"""Where models come from: the catalogue, GGUF files, folders in Hugging Face format."""
