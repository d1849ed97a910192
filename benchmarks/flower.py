"""Chapter 6's federated averaging beside Flower's, as a function and as a federation of real processes.

    python benchmarks/flower.py                       all comparisons, and one real federation
    python benchmarks/flower.py --write-reference F   Flower's averages of a few models, for the tests

The federation is a SuperLink and two SuperNodes on 127.0.0.1 with NumPy clients, the commands those of
``thousand_fingers.flower_app``. Every wait has a limit, and in the end it is checked that no process is left.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords
from flwr.supercore.task_identity import TaskIdentity

from thousand_fingers import flower_app
from thousand_fingers.federated import Update, aggregate
from thousand_fingers.flower_app import FederatedAveraging, Settings, accuracy, client_update, simulate

TOLERANCE = 1e-6
START_SECONDS = 120.0
RUN_SECONDS = 420.0
STOP_SECONDS = 20.0
SETTINGS = Settings(rounds=2, connect_seconds=90.0, reply_seconds=150.0)
SHAPES = ((30, 20), (20,), (20, 10), (10,))
SIZES = {"equal": [50, 50], "unequal": [3, 10, 50, 600], "many": list(range(1, 101))}

Arrays = Sequence[np.ndarray]


# --- The average as a function --------------------------------------------------------------------


def models(sizes: Sequence[int], seed: int) -> list[list[np.ndarray]]:
    """Return one float32 model for each client."""
    rng = np.random.default_rng(seed)
    return [[rng.normal(size=shape).astype(np.float32) for shape in SHAPES] for _ in sizes]


def flower_average(arrays: Sequence[Arrays], sizes: Sequence[int]) -> list[np.ndarray]:
    """Return the weighted average of Flower's own strategy, in the order in which the models are given."""
    records = [
        RecordDict({"arrays": ArrayRecord(list(each)), "metrics": MetricRecord({"num-examples": n})})
        for each, n in zip(arrays, sizes, strict=True)
    ]
    return aggregate_arrayrecords(records, "num-examples").to_numpy_ndarrays()


def our_average(arrays: Sequence[Arrays], sizes: Sequence[int]) -> Sequence[np.ndarray]:
    updates = [Update(k, 1, n, tuple(each)) for k, (each, n) in enumerate(zip(arrays, sizes, strict=True))]
    return aggregate(arrays[0], updates, round_number=1).arrays


def difference(one: Arrays, other: Arrays) -> float:
    return max(float(np.abs(a.astype(np.float64) - b).max()) for a, b in zip(one, other, strict=True))


def compare_averages() -> None:
    for seed, (name, sizes) in enumerate(SIZES.items()):
        arrays = models(sizes, seed)
        theirs, ours = flower_average(arrays, sizes), our_average(arrays, sizes)
        assert all(a.dtype == np.float32 for a in (*theirs, *ours))
        apart = difference(theirs, ours)
        assert apart <= TOLERANCE, (name, apart)
        backwards = flower_average(arrays[::-1], sizes[::-1])
        print(f"average of {len(sizes)} clients ({name}):")
        print(f"  ours and Flower's differ by {apart:.1e}")
        print(f"  replies arrive backwards: Flower's moves by {difference(theirs, backwards):.1e},")
        print(f"  ours by {difference(ours, our_average_reversed(arrays, sizes)):.0e}")


def our_average_reversed(arrays: Sequence[Arrays], sizes: Sequence[int]) -> Sequence[np.ndarray]:
    updates = [Update(k, 1, n, tuple(each)) for k, (each, n) in enumerate(zip(arrays, sizes, strict=True))]
    return aggregate(arrays[0], updates[::-1], round_number=1).arrays


def write_reference(path: Path) -> None:
    """Write Flower's averages; the models behind them are drawn again from the same seeds."""
    found = {"version": np.array(flower_app.FLOWER_VERSION), "shapes": np.array([len(SHAPES)])}
    for seed, (name, sizes) in enumerate(SIZES.items()):
        for layer, array in enumerate(flower_average(models(sizes, seed), sizes)):
            found[f"{name}.{layer}"] = array
    np.savez_compressed(path, **found)
    print(f"wrote {path}")


# --- The strategy, on a grid in this process -------------------------------------------------------


class Grid:
    """Nodes with random numbers, whose replies are computed here; some fail, in ways that happen."""

    def __init__(self, clients: dict[int, int], faults: dict[int, str]) -> None:
        self.clients, self.faults = clients, faults

    def get_node_ids(self) -> list[int]:
        return list(self.clients)

    def send_and_receive(self, messages: list[Message], *, timeout: float) -> list[Message]:
        assert timeout > 0
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            client = self.clients[node]
            fault = self.faults.get(client)
            if message.metadata.message_type == "query" and fault == "stranger":
                replies.append(Message(Error(code=0, reason="no partition-id"), reply_to=message))
                continue
            if message.metadata.message_type != "train":
                fault = None
            if fault == "silent":
                continue
            content = RecordDict({"metrics": MetricRecord({"client": client})})
            if message.metadata.message_type == "train":
                content = self._trained(message, client, fault)
            reply = (
                Message(Error(code=0, reason="out of memory"), reply_to=message)
                if fault == "error"
                else Message(content, reply_to=message)
            )
            replies.append(reply)
        return replies[::-1]

    def _trained(self, message: Message, client: int, fault: str | None) -> RecordDict:
        number = message.content["config"]["round"]
        weights = message.content["arrays"].to_numpy_ndarrays()
        n_k, new = client_update(weights, client, len(self.clients), number, SETTINGS)
        if fault == "nan":
            new[0][0, 0] = np.nan
        metrics = {"num-examples": n_k, "round": number - (fault == "late")}
        if fault == "nameless":
            del metrics["num-examples"]
        return RecordDict({"arrays": ArrayRecord(list(new)), "metrics": MetricRecord(metrics)})


def check_strategy() -> None:
    """What comes late, broken or not at all is left out; too few leave the model as it was."""
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # as Flower sets it in a server
    faults = {1: "silent", 2: "error", 3: "nan", 4: "late", 5: "nameless"}
    nodes = [901, 17, 333, 58, 4_004, 12, 70, 8]
    grid = Grid(dict(zip(nodes, range(8), strict=True)), faults)
    strategy = FederatedAveraging(rng=np.random.default_rng(0), min_clients=3, connect_seconds=2.0)
    start = list(flower_app.initial_weights())
    messages = strategy.configure_train(1, ArrayRecord(start), ConfigRecord(), grid)
    average, metrics = strategy.aggregate_train(1, grid.send_and_receive(messages, timeout=1.0))
    assert metrics["clients"] == [0, 6, 7], metrics
    expected = aggregate(
        start, [Update(k, 1, *client_update(start, k, 8, 1, SETTINGS)) for k in (0, 6, 7)], round_number=1
    ).arrays
    assert all(map(np.array_equal, average.to_numpy_ndarrays(), expected))
    grid.faults[6] = "silent"
    assert strategy.aggregate_train(1, grid.send_and_receive(messages, timeout=1.0)) == (None, None)
    # Who takes part follows from the generator, not from Flower's numbers of the nodes.
    chosen = []
    for order in (nodes, nodes[::-1]):
        strategy = FederatedAveraging(rng=np.random.default_rng(5), share=0.5, connect_seconds=2.0)
        named = Grid({7 * node: k for node, k in zip(order, [*range(8)], strict=True)}, {})
        asked = strategy.configure_train(1, ArrayRecord(start), ConfigRecord(), named)
        chosen.append([named.clients[m.metadata.dst_node_id] for m in asked])
    assert chosen[0] == chosen[1], chosen
    assert len(chosen[0]) == 4, chosen
    # Nobody comes: an error after the time that was given, not a wait for ever.
    began = time.monotonic()
    lonely = FederatedAveraging(rng=np.random.default_rng(0), connect_seconds=0.5)
    complaint = ""
    try:
        lonely.configure_train(1, ArrayRecord(start), ConfigRecord(), Grid({}, {}))
    except TimeoutError as error:
        complaint = str(error)
    assert "0 clients are connected" in complaint, complaint
    assert time.monotonic() - began < 10
    # Who cannot say which client it is does not take part, and the error that ends the wait says so.
    complaint = ""
    try:
        FederatedAveraging(rng=np.random.default_rng(0), connect_seconds=0.5).configure_train(
            1, ArrayRecord(start), ConfigRecord(), Grid({7: 0, 8: 1}, {1: "stranger"})
        )
    except TimeoutError as error:
        complaint = str(error)
    assert "1 clients are connected" in complaint, complaint
    assert "no partition-id" in complaint, complaint
    # Who left and comes back has another node number and is the same client; two at a time are a mistake.
    strategy = FederatedAveraging(rng=np.random.default_rng(0), connect_seconds=2.0)
    for number, clients in enumerate(({7: 0, 8: 1}, {7: 0, 99: 1}), start=1):
        grid = Grid(clients, {})
        asked = strategy.configure_train(number, ArrayRecord(start), ConfigRecord(), grid)
        assert sorted(m.metadata.dst_node_id for m in asked) == sorted(clients)
    try:
        strategy.configure_train(3, ArrayRecord(start), ConfigRecord(), Grid({7: 0, 99: 1, 100: 1}, {}))
    except ValueError as error:
        complaint = str(error)
    assert "two nodes say that they are client 1" in complaint, complaint
    print("strategy: five of eight replies unusable, three averaged")
    print("  who takes part follows from the generator")


# --- A real federation ----------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def processes_of(home: Path) -> list[int]:
    """Return all processes that were started with this FLWR_HOME, whoever is their parent."""
    wanted = f"FLWR_HOME={home}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def stop(started: Sequence[subprocess.Popen[bytes]], home: Path) -> None:
    """End what was started here, politely, then firmly; raise if something is left."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, how)
        for pid in processes_of(home):  # children that left their group
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)
        deadline = time.monotonic() + STOP_SECONDS
        while time.monotonic() < deadline:
            for process in started:
                process.poll()
            if not processes_of(home):
                return
            time.sleep(0.2)
    raise RuntimeError(f"processes were left behind: {processes_of(home)}")


def wait_until_up(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2):
            return
        time.sleep(0.3)
    raise RuntimeError(f"the SuperLink did not come up:\n{log.read_text(errors='replace')[-2000:]}")


@contextlib.contextmanager
def federation(folder: Path, n_clients: int) -> Iterator[dict[str, str]]:
    """Start a SuperLink and its SuperNodes; yield the environment in which ``flwr run`` finds them."""
    home = folder / "flwr"
    home.mkdir()
    bin_ = Path(sys.executable).parent
    environment = {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "OMP_NUM_THREADS": "1",
        "PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}",
        "NO_PROXY": "127.0.0.1",
    }
    port = free_port()
    address = f"127.0.0.1:{port}"
    (home / "config.toml").write_text(f'[superlink.loop]\naddress = "{address}"\ninsecure = true\n')
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *command: str) -> Path:
        log = folder / f"{name}.log"
        with log.open("wb") as sink:
            process = subprocess.Popen(
                [str(bin_ / command[0]), *command[1:]],
                env=environment,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        started.append(process)
        return log

    here = ("--insecure", "--host", "127.0.0.1", "--port")
    try:
        log = start(
            "superlink", "flower-superlink", *here, str(port), "--disable-runtime-dependency-installation"
        )
        wait_until_up(f"http://{address}/health", started[0], log)
        for k in range(n_clients):
            identity = f"partition-id={k} num-partitions={n_clients}"
            node = ("flower-supernode", *here, str(free_port()), "--superlink", address)
            start(f"supernode-{k}", *node, "--node-config", identity)
        yield environment
    finally:
        stop(started, home)


def run_federation(n_clients: int = 2) -> None:
    """Train in real processes, and compare the model with ours and with Flower's average."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        settings = dataclasses.replace(SETTINGS, out=str(folder / "model.npz"))
        flower_app.write_app(folder / "app", settings)
        began = time.monotonic()
        with federation(folder, n_clients) as environment:
            up = time.monotonic() - began
            run = subprocess.run(
                ["flwr", "run", str(folder / "app"), "loop", "--stream"],
                env=environment,
                capture_output=True,
                text=True,
                timeout=RUN_SECONDS,
                check=False,
            )
            took = time.monotonic() - began
        logs = "\n".join(path.read_text(errors="replace")[-1500:] for path in folder.glob("*.log"))
        assert (folder / "model.npz").exists(), f"{run.stdout[-3000:]}\n{run.stderr[-3000:]}\n{logs}"
        with np.load(folder / "model.npz") as box:
            real = [box[name] for name in box.files]
    ours = simulate(n_clients, SETTINGS)
    # Flower's own average over the same clients, replies in the opposite order.
    flowers = simulate(
        n_clients,
        SETTINGS,
        average=lambda _, updates: flower_average(
            [u.arrays for u in updates[::-1]], [u.n_k for u in updates[::-1]]
        ),
    )
    assert difference(real, ours) <= TOLERANCE, difference(real, ours)
    assert difference(real, flowers) <= TOLERANCE, difference(real, flowers)
    print(f"federation of {n_clients} real clients, {SETTINGS.rounds} rounds: {accuracy(real):.1%} right")
    print(f"  differs from ours in one process by {difference(real, ours):.0e}")
    print(f"  differs from Flower's average by {difference(real, flowers):.0e}")
    print(f"  SuperLink and nodes up after {up:.0f} s, all done after {took:.0f} s, no process left")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write-reference", type=Path, metavar="F")
    arguments = parser.parse_args()
    if arguments.write_reference:
        write_reference(arguments.write_reference)
    else:
        compare_averages()
        check_strategy()
        run_federation()
