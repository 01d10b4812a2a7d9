"""What belongs to a class, and what all classes share, from few labels: N-VAE, by plain Pyro.

Of the training images 100 have a label. For the others the guide gives a probability of each class,
which TraceEnum_ELBO enumerates; a batch mixes both. The decoder sees the latents of the image's
class and the shared ones. A linear classifier of the labeled images alone is printed beside it.

One run, `python -m examples.pyro_nvae` (seed 0), on 360 held-out images: ELBO 2.52 nats per image;
test error 8.3%, of the linear classifier 12.5%.

[1] Antoran and Miguel, Disentangling and Learning Robust Representations with Natural Clustering,
    ICMLA 2019.
"""

import argparse

import pyro
import torch
from pyro.infer import SVI, TraceEnum_ELBO
from pyro.optim import Adam
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from guides import ClassifierGuide
from ppl_models import NVAE, Normal, SharedMLP


def main(args: argparse.Namespace) -> None:
    pyro.set_rng_seed(args.seed)
    data = load_digits(return_X_y=True)
    parts = train_test_split(data[0].astype("float32") / 16, data[1], test_size=360, random_state=0)
    x, x_test, y, y_test = (torch.as_tensor(part, device=args.device) for part in parts)
    known = torch.arange(len(x), device=args.device) < args.num_labels

    # 10 classes with 2 latents each, and 6 that all share.
    model = NVAE((64,), 10, 2, 6, Normal(0.3), SharedMLP((200, 200)))
    guide = ClassifierGuide(model, label_weight=30).to(args.device)
    svi = SVI(model, guide, Adam({"lr": args.learning_rate}), TraceEnum_ELBO(max_plate_nesting=1))

    label = torch.where(known, y, 0)  # those that are unknown are never looked at
    for epoch in range(args.num_epochs):
        loss = 0.0
        for rows in torch.randperm(len(x), device=args.device).split(args.batch_size):
            loss += svi.step(x[rows], label=label[rows], known=known[rows])
        if epoch % 10 == 0 or epoch == args.num_epochs - 1:
            print(f"epoch {epoch}: loss per image {loss / len(x):.2f}")

    unknown = torch.zeros_like(y_test)
    test_loss = svi.evaluate_loss(x_test, label=unknown, known=unknown > 0)
    print(f"ELBO of held-out images, log p(x): {-test_loss / len(x_test):.2f} nats per image")
    error = (guide.predict(x_test)["class"] != y_test.cpu().numpy()).mean()
    linear = LogisticRegression(max_iter=1000).fit(x[known].cpu(), y[known].cpu())
    error_of_linear = 1 - linear.score(x_test.cpu(), y_test.cpu())
    print(f"test error: {error:.1%}; of the linear classifier: {error_of_linear:.1%}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-labels", type=int, default=100)
    parser.add_argument("--num-epochs", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    main(parser.parse_args())
