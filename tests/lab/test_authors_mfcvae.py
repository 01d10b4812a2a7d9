"""The authors' own model is trained and scored as theirs is: with a model in its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.benchmarks import authors_mfcvae
from tests import fresh

ROOT = Path(__file__).parents[2]
STUB = """
import torch
from torch import nn
from torch.distributions import Independent, Normal


class MFCVAE(nn.Module):
    def __init__(self, in_dim, z_j_dim_list, **settings):
        super().__init__()
        self.encoders = nn.ModuleList(nn.Linear(in_dim, d) for d in z_j_dim_list)
        self.decoder = nn.Linear(sum(z_j_dim_list), in_dim)

    def initialize_fc_layers(self):
        pass

    def initialize_p_z_c_params_with_gmm(self, loader, model_type, epoch, batch_idx):
        assert len(list(loader)) == 1

    def forward(self, x, epoch, batch_idx):
        q = [Independent(Normal(each(x), 0.1), 1) for each in self.encoders]
        z = [each.rsample() for each in q]
        return self.decoder(torch.cat(z, 1)).sigmoid(), q, z

    def compute_loss_5terms(self, x, x_hat, q, z, epoch):
        return (x - x_hat).square().sum(1).mean(), None

    def compute_q_c_j_x(self, z):
        return [each.softmax(1) for each in z]
"""


def test_a_folder_without_their_model_is_refused(mnist_root: Path, tmp_path: Path) -> None:
    flags = ["--data-root", str(mnist_root), "--out", str(tmp_path / "run")]
    with pytest.raises(SystemExit, match=r"there is no mfcvae\.py in"):
        authors_mfcvae.main([str(tmp_path), *flags])


@pytest.mark.thorough
def test_a_run_is_scored_and_goes_on_after_a_stop(mnist_root: Path, tmp_path: Path) -> None:
    (tmp_path / "mfcvae.py").write_text(STUB)

    def run(name: str, epochs: int) -> dict[str, dict[str, float]]:
        flags = ["--data-root", str(mnist_root), "--train-rows", "300", "--evaluate-every", "1"]
        flags += ["--epochs", str(epochs), "--out", str(tmp_path / name)]
        done = fresh.run("-m", "lab.benchmarks.authors_mfcvae", str(tmp_path), *flags, cwd=ROOT)
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads((tmp_path / name / "scores.json").read_text())

    whole = run("whole", 2)
    assert set(whole) == {"style", "digit", "joint"}
    assert 0 < whole["digit"]["accuracy"] < whole["joint"]["probe_means"] < 1
    run("again", 1)  # as if it had been stopped after its first epoch
    assert run("again", 2) == whole
    records = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("whole", "again")]
    assert records[0] == records[1]
    assert [json.loads(line)["epoch"] for line in records[0].splitlines()] == [1, 2, 3]
