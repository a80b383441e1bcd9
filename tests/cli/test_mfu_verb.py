"""``ofuwatch mfu`` as its users call it."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from detector.cli import main

LLAMA = {
    "hidden_size": 16384, "num_hidden_layers": 126, "num_attention_heads": 128,
    "num_key_value_heads": 8, "intermediate_size": 53248, "vocab_size": 128256,
    "hidden_act": "silu",
}  # fmt: skip
HYBRID = {
    "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128,
    "n_routed_experts": 512, "num_experts_per_tok": 22, "moe_intermediate_size": 2688,
    "moe_latent_size": 1024, "moe_shared_expert_intermediate_size": 5376, "vocab_size": 131072,
    "hybrid_override_pattern": "MEMEMEM*EMEMEMEM*EME", "mamba_num_heads": 128,
    "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8, "mlp_hidden_act": "relu2",
}  # fmt: skip


@pytest.fixture
def llama(tmp_path: Path) -> str:
    return _written(tmp_path, LLAMA)


def _written(folder: Path, config: object) -> str:
    file = folder / "config.json"
    file.write_text(json.dumps(config))
    return str(file)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["mfu", *arguments])


def record(*arguments: str) -> dict[str, object]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    found: dict[str, object] = json.loads(result.stdout)
    return found


def test_mfu_comes_from_the_model_and_the_throughput_of_the_whole_job(llama: str) -> None:
    """A published row: 1,048 tokens/s on each of 256 GPUs are 2,646 model TFLOP/s a GPU."""
    found = record(
        "--model", llama, "--seq", "8192", "--tokens-per-s", str(1048 * 256), "--gpus", "256",
        "--peak", "5000",
    )  # fmt: skip
    assert found["mfu"] == pytest.approx(2646 / 5000, rel=1e-3)
    assert found["hfu"] == found["mfu"]


def test_hfu_counts_what_is_computed_again(llama: str) -> None:
    found = record(
        "--model", llama, "--seq", "8192", "--tokens-per-s", "400", "--peak", "989.4",
        "--recompute", "full",
    )  # fmt: skip
    assert 1.32 < found["hfu"] / found["mfu"] < 4 / 3  # type: ignore[operator]


def test_a_reported_mfu_that_ofu_contradicts_is_explained(tmp_path: Path) -> None:
    result = run(
        "--model", _written(tmp_path, HYBRID), "--seq", "8192", "--gpu", "H100-SXM",
        "--precision", "bf16", "--ofu", "0.2558", "--reported", "0.5427",
    )  # fmt: skip
    assert result.exit_code == 0
    assert "is 1.961 times the 0.2768 that OFU implies" in result.stdout
    likeliest = result.stdout.partition("likeliest first:\n")[2].splitlines()[0]
    assert "routed experts counted at the hidden size, not at their latent one" in likeliest


def test_work_that_the_tensor_pipe_did_not_do_is_no_agreement(llama: str) -> None:
    arguments = (
        "--model", llama, "--seq", "8192", "--gpu", "H100-SXM", "--precision", "bf16",
        "--tokens-per-s", "392", "--reported", "1.0", "--ofu", "0.5",
    )  # fmt: skip
    said = run(*arguments).stdout
    assert "They agree within the doubt." in said
    assert "This cannot be right: MFU 1.0000 is above OFU, 0.5410 of the same peak" in said
    found = record(*arguments)
    assert found["contradictions"]


def test_ties_are_marked_and_what_is_not_known_is_possible(llama: str) -> None:
    said = run("--model", llama, "--seq", "8192", "--ofu", "0.4", "--reported", "0.2").stdout
    listed = said.partition("likeliest first:\n")[2].splitlines()
    assert len(listed) == 5
    assert all(line.endswith("(tied)") for line in listed[:4])
    assert listed[4] == "Causes that are not known here are possible."


def test_agreement_is_said() -> None:
    result = run("--reported", "0.41", "--ofu", "0.42")
    assert "They agree within the doubt" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "give --model config.json"),
        (("--reported", "54"), "give a ratio, not percent"),
        (("--reported", "0.5"), "--reported needs --ofu"),
        (("--reported", "0.5", "--ofu", "2.9"), "--ofu 2.9 is outside 0..1"),
        (("--set", "hidden_size"), "no KEY=VALUE"),
        (("--set", "hidden_size=8"), "vocab_size is missing"),
        (("--set", "num_hidden_layer=3"), "did you mean num_hidden_layers?"),
        (("--set", "num_moons=3"), "num_moons is no key that is understood"),
        (("--set", "text_config=5"), "text_config must be an object"),
        (("--model", "/nowhere.json"), "/nowhere.json cannot be read: No such file"),
        (("--model", "/dev/zero"), "/dev/zero is no regular file"),
        (("--tokens-per-s", "nan", "--reported", "1"), "--tokens-per-s must be above 0"),
        (
            ("--tokens-per-s", "9", "--reported", "1"),
            "--tokens-per-s needs a model, and a peak",
        ),
        (("--gpus", "0", "--reported", "1"), "--gpus must be above 0"),
        (("--gpu", "H100-SXM", "--reported", "0.4", "--ofu", "0.4"), "--precision is missing"),
        (("--gpu", "H10", "--precision", "bf16", "--reported", "0.4"), "no single model"),
    ],
)
def test_bad_input_is_one_line_that_says_what_to_do(
    arguments: tuple[str, ...], says: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert says in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_setting_goes_before_the_file_and_null_leaves_a_key_out(tmp_path: Path) -> None:
    text = {**LLAMA, "attn_layer_period": 8}
    file = _written(
        tmp_path, {"model_type": "x", "vision_config": {"a": 1}, "text_config": text}
    )
    refused = run("--model", file, "--seq", "8192")
    assert "attn_layer_period is not understood" in refused.stderr
    counted = ("--model", file, "--seq", "8192", "--set", "attn_layer_period=null")
    whole = record(*counted)["model_flop_per_token"]
    half = record(*counted, "--set", "num_hidden_layers=63")["model_flop_per_token"]
    assert 1.9 < whole / half < 2.0  # type: ignore[operator]


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "config.json"
    os.mkfifo(pipe)
    result = run("--model", str(pipe), "--seq", "8")
    assert result.exit_code == 2
    assert "is no regular file" in result.stderr


@pytest.mark.parametrize("text", ["", "[1]", "{", '"x"', "\x00"])
def test_a_file_that_is_no_configuration_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    result = run("--model", str(file), "--seq", "8")
    assert result.exit_code == 2
    assert f"{file} is no JSON object" in result.stderr
