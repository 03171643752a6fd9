"""Models: the reference Llama, an adapter for Hugging Face models, scripted models for tests, and loading."""

from typing import TYPE_CHECKING

from specdec_ref.lazy import attach

if TYPE_CHECKING:
    from specdec_ref.models.huggingface import HuggingFaceModel as HuggingFaceModel
    from specdec_ref.models.layout import bytes_a_pass as bytes_a_pass
    from specdec_ref.models.llama import Llama as Llama
    from specdec_ref.models.llama import LlamaConfig as LlamaConfig
    from specdec_ref.models.load import load_model as load_model
    from specdec_ref.models.scripted import ScriptedModel as ScriptedModel
else:
    __getattr__, __dir__, __all__ = attach(__name__, __file__)
