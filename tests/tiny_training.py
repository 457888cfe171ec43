"""A tiny model, its tokenizer of bytes, and MDS of every type, for tests of `hf-mds train`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from datasets import Dataset, Features, List, Value
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import hf_mds

TEMPLATE = (
    "{% for m in messages %}[{{ m['role'] }}]{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}"
    "{{ eos_token }}{% endgeneration %}{% else %}{{ m['content'] }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
COUNTS = {"text": 40, "chat": 24, "alpaca": 24, "segments": 24, "tokens": 60}


def make_tokenizer(template: str | None = TEMPLATE) -> Any:
    """A token for each byte: text and tokens tell each other."""
    words = ["<s>", "</s>", "<pad>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = template
    return fast


def make_model(folder: Path) -> None:
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=256, bos_token_id=0, eos_token_id=1, pad_token_id=2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)


def make_data(folder: Path) -> None:
    chat = [[{"role": "human", "content": f"q{n}"}, {"role": "gpt", "content": f"a{n}"}] for n in range(24)]
    columns: dict[str, dict[str, list[Any]]] = {
        "text": {"text": [f"text {n}" for n in range(40)]},
        "chat": {"messages": chat},
        "alpaca": {
            "instruction": [f"do {n}" for n in range(24)],
            "input": ["" if n % 2 else f"in {n}" for n in range(24)],
            "output": [f"done {n}" for n in range(24)],
        },
        "segments": {
            "segments": [[{"label": False, "text": f"u{n}"}, {"label": True, "text": f"v{n}"}] for n in range(24)]
        },
    }
    for name, given in columns.items():
        hf_mds.to_mds(Dataset.from_dict(given), folder / name, size_limit=1000)
    features = Features({"input_ids": List(Value("uint16"))})
    tokens = {"input_ids": [[10 + n] * (3 + n % 5) for n in range(60)]}
    hf_mds.to_mds(Dataset.from_dict(tokens, features=features), folder / "tokens", size_limit=300)
