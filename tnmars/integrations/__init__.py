"""Integrations: compressed models where models live: Hugging Face transformers, its Trainer, and Lightning.

A library is imported when one of its functions is called, and not before.

Example:
    >>> import tnmars
    >>> sorted(tnmars.integrations.__all__)[:2]
    ['lightning_callback', 'register']
"""

from tnmars.integrations.callbacks import lightning_callback as lightning_callback
from tnmars.integrations.callbacks import trainer_callback as trainer_callback
from tnmars.integrations.trainer_stages import trainer_stages as trainer_stages
from tnmars.integrations.transformers_models import register as register
from tnmars.integrations.transformers_models import save_pretrained as save_pretrained

__all__ = ["lightning_callback", "register", "save_pretrained", "trainer_callback", "trainer_stages"]
