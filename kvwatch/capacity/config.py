"""Reads numbers out of a model's config.json, whatever its author calls them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvwatch.capacity.defaults import ALWAYS, BY_MODEL_TYPE
from kvwatch.capacity.errors import PlanError

#: Where the part that generates text stands in the configuration of a model that sees or hears.
_TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
#: One meaning, several keys: the first that is there. As vLLM's `ModelArchConfigConvertorBase` looks for them.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "decoder_attention_heads"),
    "kv_heads": (
        "n_head_kv",
        "num_kv_heads",
        "num_key_value_heads",
        "multi_query_group_num",
        "num_attention_groups",
    ),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "head_dim": ("head_dim", "hidden_size_per_head", "kv_channels"),
    "max_len": (
        "max_position_embeddings",
        "n_positions",
        "max_seq_len",
        "seq_length",
        "model_max_length",
        "max_target_positions",
        "max_sequence_length",
        "max_seq_length",
        "seq_len",
    ),
}
MOST_LAYERS = 10_000
_MOST = 1 << 40


@dataclass(slots=True)
class Config:
    """A configuration: the text part over the whole. `notes` collects what had to be assumed while reading."""

    whole: Mapping[str, Any]
    text: Mapping[str, Any]
    nested: bool = False
    notes: list[str] = field(default_factory=list)

    def get(self, key: str, default: Any = None) -> Any:
        """A value of the text part; the author's null counts as absent."""
        value = self.text.get(key)
        return default if value is None else value

    def number(self, key: str, default: int | None = None) -> int:
        """A whole number, 0 or more.

        Raises:
            PlanError: it is absent and there is no default, or it is no such number.
        """
        value = self.get(key, default if (own := self._default(key)) is None else own)
        if value is None:
            raise PlanError(
                f"{key} is not in the configuration, and the size of this model's cache depends on it"
            )
        return _whole(key, value)

    def aliased(self, meaning: str) -> int | None:
        """A number by its meaning (`ALIASES`), its class's default included; None if it is under none of the keys."""
        for key in ALIASES[meaning]:
            value = self.text.get(key)
            if value is not None:
                return _whole(key, value)
        return None if any(key in self.text for key in ALIASES[meaning]) else self._default(meaning)

    def _default(self, name: str) -> int | None:
        """What the configuration's class says of a meaning or a key; None if it says nothing."""
        kind = self.text.get("model_type")
        found = BY_MODEL_TYPE.get(kind, {}).get(name) if isinstance(kind, str) else None
        if found is None or name in self.text or not (self.nested or name in ALWAYS or name not in ALIASES):
            return None
        key = ALIASES[name][0] if name in ALIASES else name
        note = f"{key} is not in the configuration: {found}, the default of {kind}"
        if note not in self.notes:
            self.notes.append(note)
        return found

    def needed(self, meaning: str) -> int:
        """A number by its meaning, above 0.

        Raises:
            PlanError: it is absent.
        """
        value = self.aliased(meaning)
        if not value:
            keys = " or ".join(ALIASES[meaning][:2])
            raise PlanError(f"{keys} is not in the configuration, and the size of the cache depends on it")
        return value

    @property
    def layers(self) -> int:
        count = self.needed("layers")
        if count > MOST_LAYERS:
            raise PlanError(f"{count} layers in the configuration: no model has that many")
        return count

    @property
    def head_dim(self) -> int:
        """Size of a head: the author's own, else hidden size / heads."""
        own = self.aliased("head_dim")
        return own or self.needed("hidden") // self.needed("heads")

    @property
    def kv_heads(self) -> int:
        """Heads of K and V; as many as of the queries where the configuration says nothing."""
        own = self.aliased("kv_heads")
        if own == 0:
            raise PlanError("the number of key-value heads in the configuration is 0")
        return own if own is not None else self.needed("heads")

    def listed(self, key: str) -> Sequence[Any] | None:
        """A list of one entry per layer; None if it is absent or empty.

        Raises:
            PlanError: it is of another length.
        """
        value = self.get(key)
        if not value:
            return None
        if not isinstance(value, list) or len(value) < self.layers:
            raise PlanError(
                f"{key} in the configuration must be a list of {self.layers} entries, one a layer"
            )
        return value[: self.layers]

    @property
    def dtype(self) -> str | None:
        """The model's type as its author names it; that of the whole before that of the text part."""
        for part in (self.whole, self.text):
            value = part.get("torch_dtype") or part.get("dtype")
            if isinstance(value, str):
                return value.removeprefix("torch.")
        return None


def read(data: Any) -> Config:
    """The configuration, with its text part found.

    Raises:
        PlanError: this is no configuration of a model.
    """
    if not isinstance(data, Mapping):
        raise PlanError("the configuration must be a JSON object, as in a model's config.json")
    text = data
    while part := next((text[name] for name in _TEXT_PARTS if isinstance(text.get(name), Mapping)), None):
        text = part
    return Config(data, text, nested=text is not data)


def _whole(key: str, value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
        shown = repr(value) if isinstance(value, int | float | str) else type(value).__name__
        raise PlanError(f"{key} in the configuration must be a whole number, 0 or more, but is {shown[:60]}")
    return value
