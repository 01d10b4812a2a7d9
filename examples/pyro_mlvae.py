"""Content that a group shares, and style of each member: ML-VAE, trained by plain Pyro.

The groups of a batch are its images of one digit. The members' encoders agree on one posterior of
the content, a product of Normals; each image has a style of its own. No label is predicted: the
digit only says which images belong together.

One run, `python -m examples.pyro_mlvae` (seed 0), on 360 held-out images: ELBO 25.37 nats per
image; nearest neighbors in content tell the digit in 97%, in style in 41%.

[1] Bouchacourt, Tomioka and Nowozin, Multi-Level Variational Autoencoder, AAAI 2018.
"""

import argparse

import pyro
import torch
from pyro.infer import SVI, TraceMeanField_ELBO
from pyro.optim import Adam
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier

from guides import GroupedGuide
from ppl_models import MLVAE, Normal, SharedMLP


def main(args: argparse.Namespace) -> None:
    pyro.set_rng_seed(args.seed)
    data = load_digits(return_X_y=True)
    parts = train_test_split(data[0].astype("float32") / 16, data[1], test_size=360, random_state=0)
    x, x_test, y, y_test = (torch.as_tensor(part, device=args.device) for part in parts)

    # Content of 8 dimensions, style of 3.
    model = MLVAE((64,), 8, 3, Normal(0.15), SharedMLP((200, 200)))
    guide = GroupedGuide(model).to(args.device)
    svi = SVI(model, guide, Adam({"lr": args.learning_rate}), TraceMeanField_ELBO())

    for epoch in range(args.num_epochs):
        loss = 0.0
        for rows in torch.randperm(len(x), device=args.device).split(args.batch_size):
            _, group = y[rows].unique(return_inverse=True)  # groups are numbered from 0 on
            loss += svi.step(x[rows], group=group, **guide.options)
        if epoch % 10 == 0 or epoch == args.num_epochs - 1:
            print(f"epoch {epoch}: loss per image {loss / len(x):.2f}")

    test_loss = svi.evaluate_loss(x_test, group=y_test, **guide.options)
    print(f"ELBO of held-out groups: {-test_loss / len(x_test):.2f} nats per image")

    # What each image says alone: every image is a group of its own.
    z, z_test = (guide.embed(rows, group=torch.arange(len(rows))) for rows in (x, x_test))
    for name in ("content", "style"):
        classifier = KNeighborsClassifier().fit(z[name], y.cpu())
        accuracy = classifier.score(z_test[name], y_test.cpu())
        print(f"nearest neighbors in {name} tell the digit in {accuracy:.0%} of held-out images")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-epochs", type=int, default=80)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    main(parser.parse_args())
