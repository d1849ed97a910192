r"""The federated averaging of chapter 6 as an app for Flower [Beutel2020]: real processes, real messages.

Clients are softmax regressions in NumPy, so that the process that Flower starts for every message starts fast.
The server's strategy averages with :func:`thousand_fingers.federated.aggregate`: the result depends neither on
the order in which replies arrive nor on Flower's random node numbers. Flower is no part of the book's
environment; this module can be read and imported without it. On one machine, with Flower installed
(``python -m pip install flwr==1.42.0``), two clients and nothing that leaves the machine::

    python -m thousand_fingers.flower_app my_app              # writes the app into the folder my_app
    export FLWR_HOME=$PWD/flwr FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 OMP_NUM_THREADS=1
    mkdir -p $FLWR_HOME
    printf '[superlink.loop]\naddress = "127.0.0.1:18000"\ninsecure = true\n' > $FLWR_HOME/config.toml
    flower-superlink --insecure --host 127.0.0.1 --port 18000 --disable-runtime-dependency-installation &
    flower-supernode --insecure --superlink 127.0.0.1:18000 --host 127.0.0.1 --port 18100 \
        --node-config 'partition-id=0 num-partitions=2' &
    flower-supernode --insecure --superlink 127.0.0.1:18000 --host 127.0.0.1 --port 18101 \
        --node-config 'partition-id=1 num-partitions=2' &
    timeout 120 sh -c 'until curl -sfo /dev/null http://127.0.0.1:18000/health; do sleep 1; done'
    timeout 300 flwr run my_app loop --stream --run-config "rounds=2 out='$PWD/model.npz'"
    kill %1 %2 %3

``benchmarks/flower.py`` does all this by itself, with time limits, and compares the model with ours.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax

from thousand_fingers.datasets import load_mnist5k, mnist5k_split
from thousand_fingers.validation import integer, integer_array, numpy_generator, real_array, real_number

if TYPE_CHECKING:
    from thousand_fingers.federated import Update

try:
    from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import Strategy
except ImportError:
    Strategy = object  # the class below can be read, and says what is missing when it is made
    HAS_FLOWER = False
else:
    HAS_FLOWER = True

FLOWER_VERSION = "1.42.0"
N_CLASSES = 10
_log = logging.getLogger(__name__)

Weights = tuple[NDArray[np.float64], NDArray[np.float64]]
Average = Callable[[Sequence[NDArray[Any]], Sequence["Update"]], Sequence[NDArray[Any]]]


def require_flower() -> None:
    """Raise an error that says how to get Flower, if it is not there.

    Raises
    ------
    ImportError

    Examples
    --------
    >>> try:
    ...     require_flower()
    ... except ImportError as error:
    ...     assert str(error).endswith("python -m pip install flwr==1.42.0")
    """
    if not HAS_FLOWER:
        raise ImportError(
            f"Flower is not installed; in an environment of its own: python -m pip install flwr=={FLOWER_VERSION}"
        )


# --- What every participant knows -----------------------------------------------------------------


@dataclass(frozen=True)
class Settings:
    """What the server and all clients are told: the ``--run-config`` of a run, dashes for underscores.

    Parameters
    ----------
    rounds : int >= 1, default 3
    share : float in [0, 1], default 1.0
        Share of the connected clients that train in a round.
    min_clients : int >= 1, default 2
        Fewer usable updates than that leave the model as it was.
    epochs : int >= 1, default 1
        Passes over a client's own examples in one round.
    batch_size : int >= 1, default 50
    learning_rate : float > 0, default 0.1
    seed : int >= 0, default 0
        Decides who holds which examples, who takes part, and all orders.
    connect_seconds, reply_seconds : float > 0, default 120.0
        How long the server waits for ``min_clients`` clients to connect, and for the
        replies of a round.
    out : str, default ""
        File for the final weights (npz); none if empty.

    Examples
    --------
    >>> Settings.from_config({"rounds": 2, "learning-rate": 0.5}).learning_rate
    0.5
    """

    rounds: int = 3
    share: float = 1.0
    min_clients: int = 2
    epochs: int = 1
    batch_size: int = 50
    learning_rate: float = 0.1
    seed: int = 0
    connect_seconds: float = 120.0
    reply_seconds: float = 120.0
    out: str = ""

    def __post_init__(self) -> None:
        for name in ("rounds", "min_clients", "epochs", "batch_size"):
            integer(name, getattr(self, name), at_least=1)
        integer("seed", self.seed, at_least=0)
        real_number("share", self.share, at_least=0, at_most=1)
        for name in ("learning_rate", "connect_seconds", "reply_seconds"):
            real_number(name, getattr(self, name), above=0)
        if not isinstance(self.out, str):
            raise TypeError(f"out must be a string, got {self.out!r}")

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Settings:
        """Return the settings of a Flower run configuration.

        Parameters
        ----------
        config : mapping of str to bool, int, float or str
            Names with dashes; unknown ones are refused.

        Returns
        -------
        Settings
        """
        known = {field.name.replace("_", "-"): field.name for field in fields(cls)}
        unknown = sorted(set(config) - set(known))
        if unknown:
            raise ValueError(f"run-config must have only {', '.join(known)}, got {', '.join(unknown)}")
        return cls(**{known[name]: value for name, value in config.items()})

    def to_config(self) -> dict[str, Any]:
        """Return the settings as a Flower run configuration.

        Returns
        -------
        dict
        """
        return {field.name.replace("_", "-"): getattr(self, field.name) for field in fields(self)}


def client_rows(client: int, n_clients: int, *, seed: int = 0) -> NDArray[np.int64]:
    """Return the training examples that a client holds: the later clients more than the first.

    Client k of K gets a share (k + 1)/(1 + … + K) of the book's training images, so
    that a mean that forgets the numbers of examples would be seen.

    Parameters
    ----------
    client : int in [0, n_clients)
    n_clients : int >= 1
    seed : int >= 0, default 0

    Returns
    -------
    ndarray of int64
        Positions in the arrays of :func:`thousand_fingers.datasets.load_mnist5k`.

    Examples
    --------
    >>> [client_rows(k, 2).size for k in range(2)]
    [1167, 2333]
    """
    n_clients = integer("n_clients", n_clients, at_least=1)
    client = integer("client", client, at_least=0, at_most=n_clients - 1)
    train = mnist5k_split().train
    rows = train[np.random.default_rng(integer("seed", seed, at_least=0)).permutation(train.size)]
    ends = np.cumsum(np.arange(1, n_clients + 1)) / (n_clients * (n_clients + 1) / 2)
    return np.split(rows, np.rint(ends[:-1] * rows.size).astype(int))[client]


# --- A client's work, without Flower --------------------------------------------------------------


def initial_weights(n_features: int = 784) -> Weights:
    """Return a softmax regression that knows nothing: zeros.

    Parameters
    ----------
    n_features : int >= 1, default 784

    Returns
    -------
    tuple of ndarray, shapes (n_features, 10) and (10,)

    Examples
    --------
    >>> [array.shape for array in initial_weights()]
    [(784, 10), (10,)]
    """
    n_features = integer("n_features", n_features, at_least=1)
    return np.zeros((n_features, N_CLASSES)), np.zeros(N_CLASSES)


def train_locally(
    weights: Sequence[ArrayLike],
    features: ArrayLike,
    labels: ArrayLike,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    rng: np.random.Generator,
) -> Weights:
    """Return the weights after a client's steps of gradient descent on the mean cross-entropy.

    Parameters
    ----------
    weights : sequence of two arrays, shapes (n_features, 10) and (10,)
        The global model; left as it is.
    features : array-like of float, shape (n, n_features)
    labels : array-like of int, shape (n,)
        Classes 0 to 9.
    epochs : int >= 1
    batch_size : int >= 1
        The last batch of an epoch may be smaller.
    learning_rate : float > 0
    rng : numpy.random.Generator
        Source of the order of the examples, anew in each epoch.

    Returns
    -------
    tuple of ndarray

    Examples
    --------
    One step from zeros: every class has probability 1/10, so the bias of the right one
    grows by 0.9, that of the others falls by 0.1.

    >>> _, bias = train_locally(initial_weights(2), [[1.0, 0.0]], [3], epochs=1, batch_size=1,
    ...                         learning_rate=1.0, rng=np.random.default_rng(0))
    >>> bias.round(1)
    array([-0.1, -0.1, -0.1,  0.9, -0.1, -0.1, -0.1, -0.1, -0.1, -0.1])
    """
    matrix, bias = (np.array(array, dtype=np.float64) for array in weights)
    features = real_array("features", features, shape=(None, matrix.shape[0]))
    labels = integer_array("labels", labels, shape=(len(features),), at_least=0, at_most=N_CLASSES - 1)
    integer("epochs", epochs, at_least=1)
    integer("batch_size", batch_size, at_least=1)
    real_number("learning_rate", learning_rate, above=0)
    numpy_generator("rng", rng)
    wanted = np.eye(N_CLASSES)[labels]
    for _ in range(epochs):
        order = rng.permutation(len(labels))
        for start in range(0, len(labels), batch_size):
            rows = order[start : start + batch_size]
            wrong = softmax(features[rows] @ matrix + bias, axis=1) - wanted[rows]
            matrix -= learning_rate * (features[rows].T @ wrong) / rows.size
            bias -= learning_rate * wrong.mean(axis=0)
    return matrix, bias


def client_update(
    weights: Sequence[ArrayLike], client: int, n_clients: int, round_number: int, settings: Settings
) -> tuple[int, Weights]:
    """Return how many examples a client has, and its weights after one round of training.

    Parameters
    ----------
    weights : sequence of two arrays
        The global model.
    client : int in [0, n_clients)
    n_clients : int >= 1
    round_number : int >= 1
    settings : Settings

    Returns
    -------
    n_k : int
    weights : tuple of ndarray

    Examples
    --------
    >>> n_k, weights = client_update(initial_weights(), 0, 40, 1, Settings())
    >>> n_k, weights[0].shape
    (4, (784, 10))
    """
    rows = client_rows(client, n_clients, seed=settings.seed)
    digits = load_mnist5k()
    trained = train_locally(
        weights,
        digits.images[rows].reshape(rows.size, -1),
        digits.labels[rows],
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        rng=np.random.default_rng([settings.seed, round_number, client]),
    )
    return rows.size, trained


def accuracy(weights: Sequence[ArrayLike]) -> float:
    """Return the share of the book's final test images that a model gets right.

    Parameters
    ----------
    weights : sequence of two arrays
        Of the *global* model.

    Returns
    -------
    float in [0, 1]

    Examples
    --------
    >>> accuracy(initial_weights())  # always says 0, and a tenth of the images are zeros
    0.1
    """
    matrix, bias = (np.asarray(array, dtype=np.float64) for array in weights)
    digits, test = load_mnist5k(), mnist5k_split().test
    said = (digits.images[test].reshape(test.size, -1) @ matrix + bias).argmax(axis=1)
    return float((said == digits.labels[test]).mean())


def simulate(n_clients: int, settings: Settings | None = None, *, average: Average | None = None) -> Weights:
    """Run the same federation in this process, without Flower.

    Parameters
    ----------
    n_clients : int >= 1
        All of them take part in every round: ``settings.share`` must be 1.
    settings : Settings, optional
    average : callable, optional
        From the current weights and the updates of a round to the next weights;
        :func:`thousand_fingers.federated.aggregate` by default.

    Returns
    -------
    tuple of ndarray
        The final global model.

    Examples
    --------
    >>> accuracy(simulate(2, Settings(rounds=2))) > 0.8
    True
    """
    from thousand_fingers.federated import Update, aggregate

    n_clients = integer("n_clients", n_clients, at_least=1)
    settings = Settings() if settings is None else settings
    if settings.share != 1:
        raise ValueError(f"share must be 1 in a simulation, got {settings.share}")
    weights: Sequence[NDArray[Any]] = initial_weights()
    for number in range(1, settings.rounds + 1):
        updates = [
            Update(k, number, *client_update(weights, k, n_clients, number, settings))
            for k in range(n_clients)
        ]
        if average is None:
            weights = aggregate(
                weights, updates, round_number=number, min_clients=settings.min_clients
            ).arrays
        else:
            weights = average(weights, updates)
    matrix, bias = weights
    return matrix, bias


# --- The Flower side ------------------------------------------------------------------------------


class FederatedAveraging(Strategy):  # type: ignore[misc, unused-ignore]
    """Flower strategy with the average of chapter 6.

    Once per node it asks which client runs there; clients are then sampled, and
    averaged, by their own numbers. Whatever cannot be used is left out and logged with
    the client's name and the reason; with fewer than ``min_clients`` usable updates
    the model stays as it was. Every wait has an end.

    Parameters
    ----------
    rng : numpy.random.Generator
        Decides who takes part; nothing else does.
    share : float in [0, 1], default 1.0
        Share of the connected clients that train in a round, rounded, at least ``min_clients``.
    min_clients : int >= 1, default 2
    connect_seconds, reply_seconds : float > 0, default 120.0
        How long to wait for ``min_clients`` clients to connect, and for the roll call.
    """

    def __init__(
        self,
        *,
        rng: np.random.Generator,
        share: float = 1.0,
        min_clients: int = 2,
        connect_seconds: float = 120.0,
        reply_seconds: float = 120.0,
    ) -> None:
        require_flower()
        self.rng = numpy_generator("rng", rng)
        self.share = real_number("share", share, at_least=0, at_most=1)
        self.min_clients = integer("min_clients", min_clients, at_least=1)
        self.connect_seconds = real_number("connect_seconds", connect_seconds, above=0)
        self.reply_seconds = real_number("reply_seconds", reply_seconds, above=0)
        self._client_at: dict[int, int] = {}  # node number: client
        self._complaint = ""  # of the last node that could not say who it is
        self._current: list[NDArray[Any]] = []

    def summary(self) -> None:
        """Log what the strategy will do."""
        _log.info("share %g of the clients, at least %d", self.share, self.min_clients)

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> list[Any]:
        """Sample clients and write to each of them."""
        from thousand_fingers.federated import clients_per_round, sample_clients

        self._current = arrays.to_numpy_ndarrays()
        self._wait_for_clients(grid)
        connected = set(grid.get_node_ids())
        node_of = {client: node for node, client in self._client_at.items() if node in connected}
        clients = sorted(node_of)
        count = min(max(clients_per_round(len(clients), self.share), self.min_clients), len(clients))
        chosen = [clients[i] for i in sample_clients(len(clients), count, self.rng)]
        content = RecordDict({"arrays": arrays, "config": ConfigRecord({**config, "round": server_round})})
        return [
            Message(content=content, message_type=MessageType.TRAIN, dst_node_id=node_of[client])
            for client in chosen
        ]

    def aggregate_train(self, server_round: int, replies: Iterable[Any]) -> tuple[Any, Any]:
        """Average the usable replies; ``(None, None)``, and a word in the log, if they are too few."""
        from thousand_fingers.federated import RoundSkipped, Update, aggregate

        updates = []
        for reply in replies:
            client = self._client_at.get(reply.metadata.src_node_id)
            if client is None:
                _log.warning("a reply of an unknown node is left out")
            elif reply.has_error():
                _log.warning("client %d failed: %s", client, reply.error.reason)
            else:
                try:
                    metrics = reply.content["metrics"]
                    arrays = tuple(reply.content["arrays"].to_numpy_ndarrays())
                    updates.append(Update(client, metrics["round"], metrics["num-examples"], arrays))
                except (KeyError, TypeError, ValueError, AttributeError) as error:
                    _log.warning("client %d sent a reply that cannot be read: %r", client, error)
        try:
            average = aggregate(
                self._current, updates, round_number=server_round, min_clients=self.min_clients
            )
        except RoundSkipped as skipped:
            _log.warning("the model stays as it was: %s", skipped)
            return None, None
        for rejection in average.rejected:
            _log.warning("client %d is left out: %s", rejection.client, rejection.reason)
        metrics = {"num-examples": average.n_examples, "clients": list(average.clients)}
        return ArrayRecord(list(average.arrays)), MetricRecord(metrics)

    def configure_evaluate(self, server_round: int, arrays: Any, config: Any, grid: Any) -> list[Any]:  # noqa: ARG002
        """Ask no client to evaluate: the global model is judged on the test images, by the server."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Any]) -> None:  # noqa: ARG002
        """Return nothing, since nobody was asked."""
        return

    def _wait_for_clients(self, grid: Any) -> None:
        """Ask nodes that are not known yet who they are, until there are enough clients or time is up."""
        deadline = time.monotonic() + self.connect_seconds
        while True:
            connected = set(grid.get_node_ids())
            # Who left and comes back has another node number, and is still the same client.
            self._client_at = {node: client for node, client in self._client_at.items() if node in connected}
            self._call_the_roll(grid, sorted(connected - set(self._client_at)))
            known = len(self._client_at)
            if known >= self.min_clients:
                return
            if time.monotonic() >= deadline:
                raise TimeoutError(
                    f"{known} clients are connected after {self.connect_seconds:g} seconds, fewer than "
                    f"{self.min_clients}{self._complaint}"
                )
            time.sleep(min(0.5, self.connect_seconds / 10))

    def _call_the_roll(self, grid: Any, nodes: Sequence[int]) -> None:
        if not nodes:
            return
        question = RecordDict({"config": ConfigRecord()})
        replies = grid.send_and_receive(
            [Message(content=question, message_type=MessageType.QUERY, dst_node_id=node) for node in nodes],
            timeout=self.reply_seconds,
        )
        for reply in replies:
            if reply.has_error():
                complaint = f"; a node did not say which client it is: {reply.error.reason}"
                if complaint != self._complaint:  # it is asked again and again: say it once
                    _log.warning("%s", complaint.removeprefix("; "))
                self._complaint = complaint
                continue
            client = int(reply.content["metrics"]["client"])
            if client in self._client_at.values():
                raise ValueError(
                    f"two nodes say that they are client {client}: give each its own partition-id"
                )
            self._client_at[reply.metadata.src_node_id] = client


def _identity(node_config: Mapping[str, Any]) -> tuple[int, int]:
    """Return which client of how many a node is."""
    missing = [name for name in ("partition-id", "num-partitions") if name not in node_config]
    if missing:
        raise ValueError(f"--node-config must have {' and '.join(missing)}, got {dict(node_config)}")
    n_clients = integer("num-partitions", node_config["num-partitions"], at_least=1)
    return integer("partition-id", node_config["partition-id"], at_least=0, at_most=n_clients - 1), n_clients


def make_client_app() -> Any:
    """Return the Flower app of a client.

    Its node is started with ``--node-config 'partition-id=k num-partitions=K'``.

    Returns
    -------
    flwr.clientapp.ClientApp

    Raises
    ------
    ImportError
        If Flower is not installed.

    Examples
    --------
    >>> app = make_client_app() if HAS_FLOWER else None
    """
    require_flower()
    app = ClientApp()

    @app.query()
    def who(message: Any, context: Any) -> Any:
        client, _ = _identity(context.node_config)
        return Message(content=RecordDict({"metrics": MetricRecord({"client": client})}), reply_to=message)

    @app.train()
    def train(message: Any, context: Any) -> Any:
        number = int(message.content["config"]["round"])
        n_k, weights = client_update(
            message.content["arrays"].to_numpy_ndarrays(),
            *_identity(context.node_config),
            number,
            Settings.from_config(context.run_config),
        )
        metrics = MetricRecord({"num-examples": n_k, "round": number})
        content = RecordDict({"arrays": ArrayRecord(list(weights)), "metrics": metrics})
        return Message(content=content, reply_to=message)

    return app


def make_server_app() -> Any:
    """Return the Flower app of the server.

    Returns
    -------
    flwr.serverapp.ServerApp

    Raises
    ------
    ImportError
        If Flower is not installed.

    Examples
    --------
    >>> app = make_server_app() if HAS_FLOWER else None
    """
    require_flower()
    app = ServerApp()

    @app.main()
    def main(grid: Any, context: Any) -> None:
        settings = Settings.from_config(context.run_config)
        strategy = FederatedAveraging(
            rng=np.random.default_rng(settings.seed),
            share=settings.share,
            min_clients=settings.min_clients,
            connect_seconds=settings.connect_seconds,
            reply_seconds=settings.reply_seconds,
        )
        initial = ArrayRecord(list(initial_weights()))
        result = strategy.start(
            grid=grid, initial_arrays=initial, num_rounds=settings.rounds, timeout=settings.reply_seconds
        )
        arrays = result.arrays.to_numpy_ndarrays()
        if not arrays:
            raise RuntimeError("no round moved the model: see the warnings above")
        _log.info("the global model gets %.1f%% of the test images right", 100 * accuracy(arrays))
        if settings.out:
            np.savez(settings.out, *arrays)

    return app


def write_app(folder: Path, settings: Settings | None = None) -> None:
    """Write the small folder that ``flwr run`` wants: a description, a licence, a file of three lines.

    Parameters
    ----------
    folder : pathlib.Path
        Made if it is missing; files of the same names are replaced.
    settings : Settings, optional
        Defaults of the app; ``--run-config`` overrides them.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as temporary:
    ...     write_app(Path(temporary))
    ...     print(*sorted(path.name for path in Path(temporary).iterdir()))
    LICENSE fingers_app.py pyproject.toml
    """
    settings = Settings() if settings is None else settings
    folder.mkdir(parents=True, exist_ok=True)
    config = "\n".join(f"{name} = {_toml(value)}" for name, value in settings.to_config().items())
    (folder / "pyproject.toml").write_text(
        _PYPROJECT.format(config=config, flower=FLOWER_VERSION), encoding="utf-8"
    )
    (folder / "fingers_app.py").write_text(_APP, encoding="utf-8")
    (folder / "LICENSE").write_text("MIT, as the book that wrote this folder.\n", encoding="utf-8")


def _toml(value: float | str) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return repr(value)


_APP = '''"""Written by thousand_fingers.flower_app, where the code is."""
from thousand_fingers.flower_app import make_client_app, make_server_app

client_app = make_client_app()
server_app = make_server_app()
'''

_PYPROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fingers-app"
version = "0.1.0"
description = "Federated averaging of A Thousand Fingers, chapter 6"
license = {{ file = "LICENSE" }}
dependencies = ["flwr>={flower},<2"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "thousandfingers"
fab-format-version = 1
flwr-version-target = "{flower}"

[tool.flwr.app.components]
serverapp = "fingers_app:server_app"
clientapp = "fingers_app:client_app"

[tool.flwr.app.config]
{config}
"""

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m thousand_fingers.flower_app FOLDER")
    write_app(Path(sys.argv[1]))
