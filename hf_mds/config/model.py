"""What all models of a configuration have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

__all__ = ["Section"]


class Section(BaseModel):
    """Keys and values of a configuration: an unknown key is an error, a text below a field is its documentation."""

    model_config = ConfigDict(
        extra="forbid", use_attribute_docstrings=True, frozen=True, protected_namespaces=(), allow_inf_nan=False
    )
