"""Chapter 7's attacks beside torchattacks, foolbox, ART and cleverhans: same examples? how fast?

    python benchmarks/attacks.py                       both tables, measured in this one run
    python benchmarks/attacks.py --write-reference F   the peers' answers on a tiny model, for the tests

First it insists, in float64, on the same examples as the peers that can do float64. A peer that is not
installed is left out and said so. Times are CPU seconds of one thread, the least of several repeats that
take turns; look at the ratios.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from thousand_fingers.attacks import fgsm, pgd, robust_accuracy
from thousand_fingers.datasets import load_mnist5k, mnist5k_split
from thousand_fingers.models import mlp, small_cnn
from thousand_fingers.training import train

warnings.simplefilter("ignore")  # the peers' deprecations

Attack = Callable[[nn.Module, Tensor, Tensor], Tensor]

SETTINGS = {
    "fgsm": {"radius": 0.1},
    "pgd linf": {"radius": 0.1, "step_size": 0.01, "steps": 40},
    "pgd l2": {"radius": 2.0, "step_size": 0.2, "steps": 40},
}


def ours(kind: str, radius: float, **settings: float) -> Attack:
    """Return our attack with the semantics of the peers: the last point, no random start."""
    if kind == "fgsm":
        return partial(fgsm, radius=radius)
    return partial(pgd, radius=radius, norm=kind.removeprefix("pgd "), keep="last", **settings)  # type: ignore[arg-type]


def ours_active(kind: str, radius: float, **settings: float) -> Attack:
    """Return our iterated attack as the chapters use it: whoever has fallen is left alone."""
    return partial(pgd, radius=radius, norm=kind.removeprefix("pgd "), **settings)  # type: ignore[arg-type]


def torchattacks_peer(kind: str, radius: float, step_size: float = 1.0, steps: int = 1) -> Attack:
    import torchattacks

    def attack(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        if kind == "fgsm":
            chosen = torchattacks.FGSM(model, eps=radius)
        elif kind == "pgd linf":
            chosen = torchattacks.PGD(model, eps=radius, alpha=step_size, steps=steps, random_start=False)
        else:
            chosen = torchattacks.PGDL2(model, eps=radius, alpha=step_size, steps=steps, random_start=False)
        return chosen(images, labels)

    return attack


def foolbox_peer(kind: str, radius: float, step_size: float = 1.0, steps: int = 1) -> Attack:
    import foolbox

    def attack(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
        if kind == "fgsm":
            chosen = foolbox.attacks.LinfFastGradientAttack()
        else:
            names = {"pgd linf": "LinfPGD", "pgd l2": "L2PGD"}
            chosen = getattr(foolbox.attacks, names[kind])(
                abs_stepsize=step_size, steps=steps, random_start=False
            )
        return chosen(wrapped, images, labels, epsilons=radius)[1]

    return attack


def art_peer(kind: str, radius: float, step_size: float = 1.0, steps: int = 1) -> Attack:
    from art.attacks.evasion import FastGradientMethod, ProjectedGradientDescentPyTorch
    from art.estimators.classification import PyTorchClassifier

    def attack(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        estimator = PyTorchClassifier(
            model,
            nn.CrossEntropyLoss(),
            input_shape=tuple(images.shape[1:]),
            nb_classes=10,
            clip_values=(0.0, 1.0),
            device_type="cpu",
        )
        norm = 2 if kind == "pgd l2" else np.inf
        options = {"norm": norm, "eps": radius, "batch_size": len(images)}
        if kind == "fgsm":
            chosen = FastGradientMethod(estimator, **options)
        else:
            chosen = ProjectedGradientDescentPyTorch(
                estimator, eps_step=step_size, max_iter=steps, num_random_init=0, verbose=False, **options
            )
        return torch.from_numpy(chosen.generate(images.numpy(), y=labels.numpy()))

    return attack


def cleverhans_peer(kind: str, radius: float, step_size: float = 1.0, steps: int = 1) -> Attack:
    from cleverhans.torch.attacks.fast_gradient_method import fast_gradient_method
    from cleverhans.torch.attacks.projected_gradient_descent import projected_gradient_descent

    def attack(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        norm = 2 if kind == "pgd l2" else np.inf
        options = {"norm": norm, "clip_min": 0.0, "clip_max": 1.0, "y": labels}
        if kind == "fgsm":
            return fast_gradient_method(model, images, radius, **options).detach()
        return projected_gradient_descent(
            model, images, radius, step_size, steps, rand_init=False, sanity_checks=False, **options
        ).detach()

    return attack


PEERS = {
    "torchattacks": torchattacks_peer,
    "foolbox": foolbox_peer,
    "adversarial-robustness-toolbox": art_peer,
    "cleverhans": cleverhans_peer,
}


def installed_peers() -> dict[str, Callable[..., Attack]]:
    found = {}
    for name, peer in PEERS.items():
        try:
            peer("fgsm", radius=0.1)
        except ImportError as error:
            print(f"{name}: left out ({error})")
        else:
            print(f"{name} {importlib.metadata.version(name)}")
            found[name] = peer
    return found


def least_cpu_seconds(runs: dict[str, Callable[[], Tensor]], repeats: int) -> dict[str, float]:
    """Time all runs in turn, several times over, so that a busy moment hits everybody."""
    least = dict.fromkeys(runs, float("inf"))
    for _ in range(repeats):
        for name, run in runs.items():
            before = time.process_time()
            run()
            least[name] = min(least[name], time.process_time() - before)
    return least


def compare(title: str, model: nn.Module, images: Tensor, labels: Tensor, repeats: int) -> None:
    print(f"\n{title}, {len(images)} images of {images.dtype}".replace("torch.", ""))
    header = f"{'attack':10}{'implementation':32}{'max difference':>16}{'images > 1e-6':>15}"
    print(f"{header}{'robust accuracy':>17}{'CPU s':>9}{'ratio':>8}")
    peers = {"ours, every step": ours, **installed, "ours, active set": ours_active}
    for kind, settings in SETTINGS.items():
        attacks = {}
        for name, make in peers.items():
            if (kind, name) != ("fgsm", "ours, active set"):
                attacks[name] = make(kind, **settings)
        found = {name: attack(model, images, labels) for name, attack in attacks.items()}
        runs = {name: partial(attack, model, images, labels) for name, attack in attacks.items()}
        seconds = least_cpu_seconds(runs, repeats * 10 if kind == "fgsm" else repeats)
        for name, adversarial in found.items():
            difference = (adversarial - found["ours, every step"]).abs().flatten(1).amax(1)
            accuracy = robust_accuracy(model, adversarial, labels).value
            line = f"{kind:10}{name:32}{float(difference.max()):16.1e}{int((difference > 1e-6).sum()):15d}"
            ratio = seconds[name] / seconds["ours, every step"]
            print(f"{line}{accuracy:17.3f}{seconds[name]:9.3f}{ratio:8.2f}")


def insist_on_same_examples(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    """In float64 rounding cannot hide a difference. (The others compute in float32 whatever they get.)"""
    for name in ("torchattacks", "foolbox"):
        if name in installed:
            for kind, settings in SETTINGS.items():
                if (name, kind) != ("torchattacks", "pgd l2"):  # its step depends on the size of the batch
                    theirs = PEERS[name](kind, **settings)(model, images, labels)
                    difference = float((ours(kind, **settings)(model, images, labels) - theirs).abs().max())
                    print(f"{kind} like {name}, float64: largest difference {difference:.0e}")
                    assert difference < 1e-12, f"{kind} differs from {name} by {difference}"


def batch_invariance(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    """Attack all at once and one by one: an image's fate must not depend on its neighbours."""
    sure = nn.Sequential(model, Scaled(3.0)).eval()
    print("\nl2 attack on logits × 3: robust accuracy all at once and one by one")
    for name, make in {"ours": ours, **installed}.items():
        attack = make("pgd l2", radius=2.0, step_size=0.2, steps=20)
        together = attack(sure, images, labels)
        alone = torch.cat([attack(sure, images[i : i + 1], labels[i : i + 1]) for i in range(len(images))])
        rates = [robust_accuracy(sure, found, labels).value for found in (together, alone)]
        print(f"{name:32}{rates[0]:8.3f}{rates[1]:8.3f}")


class Scaled(nn.Module):
    def __init__(self, factor: float):
        super().__init__()
        self.factor = factor

    def forward(self, logits: Tensor) -> Tensor:
        return self.factor * logits


def tiny_model_and_images() -> tuple[nn.Sequential, Tensor, Tensor, dict[str, np.ndarray]]:
    """Return a 16-pixel model and twelve images, all drawn from one NumPy seed."""
    rng = np.random.default_rng(7)
    arrays = {
        "weight1": rng.normal(size=(8, 16)),
        "bias1": 0.1 * rng.normal(size=8),
        "weight2": rng.normal(size=(3, 8)),
        "bias2": 0.1 * rng.normal(size=3),
        "images": rng.random((12, 1, 4, 4)),
    }
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    names = ("1.weight", "1.bias", "3.weight", "3.bias")
    model.load_state_dict({n: torch.from_numpy(a) for n, a in zip(names, arrays.values(), strict=False)})
    images = torch.from_numpy(arrays["images"])
    labels = model(images).argmax(1)
    return model, images, labels, arrays | {"labels": labels.numpy()}


def write_reference(path: Path) -> None:
    """Save what the peers return on the tiny model; the tests compare ours with it, without the peers."""
    import torchattacks

    model, images, labels, arrays = tiny_model_and_images()
    settings = {
        "fgsm": {"radius": 0.1},
        "pgd linf": {"radius": 0.1, "step_size": 0.02, "steps": 10},
        "pgd l2": {"radius": 0.5, "step_size": 0.1, "steps": 10},
    }
    for name in ("torchattacks", "foolbox"):
        for kind, chosen in settings.items():
            if (name, kind) != ("torchattacks", "pgd l2"):  # its l2 step depends on the size of the batch
                found = PEERS[name](kind, **chosen)(model, images, labels)
                arrays[f"{name} {kind}"] = found.detach().numpy()
    targets = (labels + 1) % 3
    targeted = torchattacks.PGD(model, eps=0.1, alpha=0.02, steps=10, random_start=False)
    targeted.set_mode_targeted_by_label(quiet=True)
    arrays["torchattacks targeted pgd linf"] = targeted(images, targets).numpy()
    versions = " ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("torchattacks", "foolbox", "torch")
    )
    np.savez_compressed(path, versions=np.array(versions), **arrays)
    print(f"{path}: {path.stat().st_size} bytes, {versions}")


def trained(network: nn.Sequential, images: Tensor, labels: Tensor) -> nn.Sequential:
    generator = torch.Generator().manual_seed(1)
    train(network, images, labels, epochs=8, batch_size=50, learning_rate=1e-3, generator=generator)
    return network


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--write-reference", type=Path, metavar="F")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.write_reference:
        write_reference(arguments.write_reference)
    else:
        installed = installed_peers()
        digits, split = load_mnist5k(), mnist5k_split()
        images, labels = torch.from_numpy(digits.images)[:, None], torch.from_numpy(digits.labels)
        tested = torch.from_numpy(split.validation[:200])
        start = torch.Generator().manual_seed(0)
        double = trained(mlp([784, 256, 10], generator=start), images[split.train], labels[split.train])
        insist_on_same_examples(double, images[tested], labels[tested])
        images = images.float()  # two of the peers know nothing else
        perceptron = mlp([784, 256, 10], generator=start, dtype=torch.float32)
        cnn = small_cnn(generator=start, dtype=torch.float32)
        for title, network in (("MLP 784-256-10", perceptron), ("small CNN", cnn)):
            trained(network, images[split.train], labels[split.train])
            compare(title, network, images[tested], labels[tested], arguments.repeats)
        batch_invariance(perceptron, images[tested[:60]], labels[tested[:60]])
