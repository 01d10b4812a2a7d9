"""The program that measures what models cost: its comparison of objectives, and what it counts and
fits.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from benchmarks.model_cases import CASES, SMALL, Case, Size
from benchmarks.model_costs import Settings, growth, measure, report_times
from benchmarks.model_steps import check_same_objective, peak_memory
from guides import FacetGuide

CPU = torch.device("cpu")
BRIEFLY = Settings(SMALL, CPU, steps=1, untimed=0, remembered=("ours",))


@pytest.mark.parametrize("name", list(CASES))
def test_objectives_written_by_hand_are_the_librarys(name: str) -> None:
    check_same_objective(name, CASES[name], SMALL, CPU)


def with_kl_weight(case: Case, weight: float) -> Case:
    def guide(size: Size) -> FacetGuide:
        built = case.guide(size)
        built.model.kl_weights.fill_(weight)
        return built

    return replace(case, guide=guide)


def with_gradient_halved(case: Case) -> Case:
    def plain(guide: FacetGuide, x: Tensor, **given: Tensor) -> Tensor:
        value = case.plain(guide, x, **given)
        return value.detach() + 0.5 * (value - value.detach())

    return replace(case, plain=plain)


@pytest.mark.parametrize("name", ["MFCVAE", "NVAE"])
def test_another_objective_ends_the_program_before_it_is_timed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_same_objective(name, with_kl_weight(CASES[name], 1.0), SMALL, CPU)
    faults = {
        "with the same noise": with_kl_weight(CASES[name], 1.001),
        "gradient": with_gradient_halved(CASES[name]),
    }
    for message, case in faults.items():
        monkeypatch.setitem(CASES, name, case)
        with pytest.raises(ValueError, match=f"{name}: .*{message}"):
            report_times([name], BRIEFLY)


@pytest.mark.slow(2)
def test_a_table_has_every_variant_and_a_sweep_its_exponent(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = measure(["VAE", "VQVAE"], ["L"], BRIEFLY)
    assert all(
        seconds > 0 for name in ("VAE", "VQVAE") for seconds in found["seconds"][name].values()
    )
    assert found["peak_bytes"]["VQVAE"]["ours"] > 0
    assert set(found["sweeps"]["L"]["seconds"]) == {1, 2, 3}
    assert {"VAE", "VQVAE"} <= {line.split(" ")[0] for line in capsys.readouterr().out.splitlines()}


def test_the_exponent_is_that_of_a_power() -> None:
    found = growth({n: 0.01 * n**1.5 for n in (2, 4, 16)})
    assert found == pytest.approx(
        {"exponent": 1.5, "standard_error": 0, "last_slope": 1.5}, abs=1e-6
    )


def test_peak_memory_counts_what_is_held_at_once() -> None:
    def build() -> object:
        held = torch.ones(1000)
        return lambda: held.add(1).add(1)  # the first sum is there until the second one is

    assert peak_memory(build, CPU) == pytest.approx(3 * 4000, abs=200)
