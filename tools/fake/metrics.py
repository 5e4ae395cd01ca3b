"""The Prometheus page of a fake engine, under the names that vLLM and SGLang use.

Owns names and layout. The live gauges stand in the middle of a page that is otherwise built once, since real pages
are long (50 to 300 KB) and are read ten times a second.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

_VLLM_HISTOGRAMS = (
    "time_to_first_token_seconds",
    "time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_inference_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_params_max_tokens",
    "iteration_tokens_total",
)
_SGLANG_HISTOGRAMS = (
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "e2e_request_latency_seconds",
    "queue_time_seconds",
    "per_stage_req_latency_seconds",
)
_BOUNDS = ("0.001", "0.005", "0.01", "0.05", "0.1", "0.25", "0.5", "1.0", "2.5", "5.0", "10.0", "30.0", "60.0", "+Inf")


@dataclass(frozen=True, slots=True)
class Load:
    """What a replica has to do right now, and has done."""

    waiting: int
    running: int
    prompt_tokens: int
    tokens: int
    completed: int
    capacity: int


class MetricsPage:
    """The page of one replica with `series` engines (vLLM) or ranks (SGLang)."""

    def __init__(self, engine: str, series: int, page_bytes: int, model: str) -> None:
        self._vllm = engine == "vllm"
        self._labels = [_labels(self._vllm, i, model) for i in range(series)]
        self._before = self._after = b""
        filler = self._filler(max(0, page_bytes - len(self.render(Load(0, 0, 0, 0, 0, 1)))))
        half = filler.find(b"# HELP", len(filler) // 2)
        half = len(filler) if half < 0 else half
        self._before, self._after = filler[:half], filler[half:]

    def render(self, load: Load) -> bytes:
        """Return the page for a load; the sum over all series is the load."""
        lines: list[str] = []
        for name, kind, value in self._values(load):
            lines += [f"# HELP {name} {name.replace('_', ' ')}.", f"# TYPE {name} {kind}"]
            parts = _split(value, len(self._labels))
            lines += [f"{name}{{{labels}}} {part}" for labels, part in zip(self._labels, parts, strict=True)]
        live = ("\n".join(lines) + "\n").encode()
        return self._before + live + self._after

    def _values(self, load: Load) -> list[tuple[str, str, int | float]]:
        usage = min(1.0, load.running / load.capacity)
        if self._vllm:
            return [
                ("vllm:num_requests_running", "gauge", load.running),
                ("vllm:num_requests_waiting", "gauge", load.waiting),
                ("vllm:kv_cache_usage_perc", "gauge", usage),
                ("vllm:prompt_tokens_total", "counter", load.prompt_tokens),
                ("vllm:generation_tokens_total", "counter", load.tokens),
                ("vllm:request_success_total", "counter", load.completed),
            ]
        return [
            ("sglang:num_running_reqs", "gauge", load.running),
            ("sglang:num_queue_reqs", "gauge", load.waiting),
            ("sglang:token_usage", "gauge", usage),
            ("sglang:prompt_tokens_total", "counter", load.prompt_tokens),
            ("sglang:generation_tokens_total", "counter", load.tokens),
            ("sglang:num_requests_total", "counter", load.completed),
        ]

    def _filler(self, size: int) -> bytes:
        out = bytearray()
        for block in self._histograms():
            if len(out) + len(block) > size:
                break
            out += block
        return bytes(out)

    def _histograms(self) -> Iterator[bytes]:
        prefix, names = ("vllm", _VLLM_HISTOGRAMS) if self._vllm else ("sglang", _SGLANG_HISTOGRAMS)
        for turn in count():
            for base in names:
                name = f"{prefix}:{base}" + (f"_{turn}" if turn else "")
                lines = [f"# HELP {name} Histogram of {base}.", f"# TYPE {name} histogram"]
                for labels in self._labels:
                    lines += [f'{name}_bucket{{{labels},le="{bound}"}} 0.0' for bound in _BOUNDS]
                    lines += [f"{name}_sum{{{labels}}} 0.0", f"{name}_count{{{labels}}} 0.0"]
                yield ("\n".join(lines) + "\n").encode()


def _labels(vllm: bool, index: int, model: str) -> str:
    if vllm:
        return f'engine="{index}",model_name="{model}"'
    return f'engine_type="unified",model_name="{model}",pp_rank="0",tp_rank="{index}"'


def _split(value: int | float, parts: int) -> list[float]:
    if isinstance(value, float):
        return [value] * parts  # a ratio is every engine's own
    share, rest = divmod(value, parts)
    return [float(share + (i < rest)) for i in range(parts)]
