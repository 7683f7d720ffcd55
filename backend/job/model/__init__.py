"""Models for planning: the shape of a model, and its reader from a Hugging Face config.json."""

from backend.job.model.attention_shape import FullAttention as FullAttention
from backend.job.model.attention_shape import Mla as Mla
from backend.job.model.config import FIELD as FIELD
from backend.job.model.parse import parse_model as parse_model
from backend.job.model.shape import ModelShape as ModelShape
from backend.job.model.vision_shape import VisionShape as VisionShape
