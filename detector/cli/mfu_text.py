"""What ``ofuwatch mfu`` prints, for people and as JSON."""

from collections.abc import Iterator
from typing import Any

from detector.analysis.account import Compared, Work, contradictions, excess

# Explanations that are printed at most, beyond those that are tied with the best one.
_SHOWN = 5


def lines(
    work: Work, rate: float | None, measured: float | None, held: Compared | None
) -> Iterator[str]:
    """Yield the lines that people read; ``rate`` is tokens per second of one GPU."""
    yield from _flops(work)
    yield from _shares(work, rate)
    if measured is not None:
        yield f"OFU             {measured:.4f}"
        if work.clock_ratio is not None:
            times = f"x f_max / f_tensor {work.clock_ratio:.4f}"
            yield f"  against the data sheet {measured * work.clock_ratio:.4f}, {times}"
    against = _against(work, rate, measured, held)
    if held is not None:
        yield from _verdict(held, contradicted=bool(against))
    for sentence in against:
        yield f"This cannot be right: {sentence}."
    question = excess(work, measured=measured, rate=rate)
    if question is not None:
        yield question


def _against(
    work: Work, rate: float | None, measured: float | None, held: Compared | None
) -> list[str]:
    reported = None if held is None else held.reported
    return list(contradictions(work, reported=reported, measured=measured, rate=rate))


def _flops(work: Work) -> Iterator[str]:
    if work.model is None:
        return
    yield f"model FLOPs     {work.model_flop:.4g} a token, 3 forward passes, of which"
    total = sum(work.parts.values())
    for part, flop in sorted(work.parts.items(), key=lambda item: -item[1]):
        yield f"  {part.replace('_', ' '):<22}{flop / total:7.1%}"
    scores = "half of the scores (causal)" if work.causal else "all scores"
    yield f"  attention counts {scores} of {work.seq} tokens"
    for note in work.model.notes:
        yield f"  note: {note}"
    if work.recompute != "none":
        yield f"executed FLOPs  {work.again:.4f} times that: {work.recompute} recomputation"


def _shares(work: Work, rate: float | None) -> Iterator[str]:
    shown = {"MFU": work.model_flop}
    if work.recompute != "none":
        shown["HFU"] = work.executed_flop
    for name, flop in shown.items():
        share = work.share(flop, rate)
        if share is not None and rate is not None:
            throughput = f"{rate:.6g} tokens/s a GPU, peak {work.peak_tflops:g} TFLOP/s"
            yield f"{name}             {share:.4f}  at {throughput}"


def _verdict(held: Compared, *, contradicted: bool) -> Iterator[str]:
    yield (
        f"reported MFU    {held.reported:.4f}  is {held.ratio:.3f} times the "
        f"{held.true:.4f} that {held.by} implies (doubt {held.tolerance:.0%})"
    )
    if held.agree:
        nothing = "" if contradicted else ": nothing to explain"
        yield f"They agree within the doubt{nothing}."
        return
    found = held.explanations
    if not found:
        yield "No single mistake of those known gives that ratio, nor do two; others may."
        return
    if len(found[0].mistakes) == 1:
        yield "What would explain it, the likeliest first:"
    else:
        yield "No single mistake of those known does. Two together would, maybe by chance:"
    ties = sum(one.tied for one in found)
    shown = max(_SHOWN, ties) if len(found[0].mistakes) == 1 else _SHOWN
    for one in found[:shown]:
        says = ", and ".join(mistake.says for mistake in one.mistakes)
        tie = "  (tied)" if one.tied and ties > 1 else ""
        yield f"  x {one.factor:.3f}  {says}{tie}"
    if len(found) > shown:
        yield f"  and {len(found) - shown} more within the doubt (--json has all)"
    yield "Causes that are not known here are possible."


def record(
    work: Work, rate: float | None, measured: float | None, held: Compared | None
) -> dict[str, Any]:
    """Return the same as one JSON object."""
    return {
        "model_flop_per_token": work.model_flop,
        "executed_flop_per_token": work.executed_flop,
        "forward_flop_per_token": work.parts,
        "notes": work.model.notes if work.model else (),
        "peak_tflops": work.peak_tflops,
        "clock_ratio": work.clock_ratio,
        "mfu": work.share(work.model_flop, rate),
        "hfu": work.share(work.executed_flop, rate),
        "ofu": measured,
        "contradictions": _against(work, rate, measured, held),
        "question": excess(work, measured=measured, rate=rate),
        "reported": held
        and {
            "mfu": held.reported,
            "true": held.true,
            "true_by": held.by,
            "ratio": held.ratio,
            "tolerance": held.tolerance,
            "agree": held.agree,
            "explanations": [
                {
                    "mistakes": [mistake.name for mistake in one.mistakes],
                    "says": [mistake.says for mistake in one.mistakes],
                    "factor": one.factor,
                    "left": one.off,
                    "tied": one.tied,
                }
                for one in held.explanations
            ],
        },
    }
