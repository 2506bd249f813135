"""The loads: the arguments of share-load (load/main.c) for each, and its known properties."""

from __future__ import annotations

from dataclasses import dataclass

MS = 1_000_000
CAPS = (10, 30, 50, 70, 90, 100)


@dataclass(frozen=True)
class Load:
    """`words` are share-load's; `kernel_ns` is the length of its longest kernel or graph.

    `saturates`: alone it leaves the card no pause, so its rate of work alone is 100 % of the card by
    definition. For another load the nominal time of its kernels counts. `caps`: the caps, in percent, that it
    is tried alone with.
    """

    name: str
    words: tuple[str, ...]
    kernel_ns: int
    saturates: bool = True
    processes: int = 1
    caps: tuple[int, ...] = CAPS

    @property
    def light(self) -> bool:
        """Costs the host next to nothing, so that several can run side by side on cards of their own."""
        return self.kernel_ns >= 100 * MS


LOADS = {
    load.name: load
    for load in (
        Load("async-10us", ("async", "kernel=10us"), MS // 100),
        Load("async-1ms", ("async", "kernel=1ms"), MS),
        Load("async-100ms", ("async", "kernel=100ms"), 100 * MS),
        Load("async-1s", ("async", "kernel=1s"), 1000 * MS),
        Load("sync-1ms", ("sync", "kernel=1ms"), MS, saturates=False),
        Load("sync-100ms", ("sync", "kernel=100ms"), 100 * MS, saturates=False),
        Load("few-blocks", ("async", "kernel=1ms", "blocks=64"), MS),
        Load("graphs", ("graph", "kernel=50us", "graph=20"), MS),
        Load("bursty", ("async", "kernel=1ms", "on=3s", "off=1s"), MS),
        Load("processes", ("async", "kernel=1ms", "processes=3"), MS, processes=3),
        Load("streams", ("async", "kernel=1ms", "streams=4"), MS),
        *(
            Load(
                f"interleaved-{count}",
                ("interleaved", "kernel=100us", f"streams={count}"),
                MS // 10,
                saturates=False,
            )
            for count in (1, 2, 4, 8)
        ),
        Load(
            "interleaved-processes",
            ("interleaved", "kernel=100us", "streams=4", "processes=4"),
            MS // 10,
            saturates=False,
            processes=4,
        ),
        Load(
            "interleaved-many",
            ("interleaved", "kernel=30us", "streams=8", "processes=8"),
            MS // 10,
            saturates=False,
            processes=8,
        ),
        # Ways of real programs to launch.
        *(
            Load(name, words, MS // 10, saturates=False, processes=processes, caps=(30, 100))
            for name, processes, words in (
                ("priorities", 1, ("interleaved", "kernel=100us", "streams=2", "priorities=1")),
                ("legacy-stream", 1, ("interleaved", "kernel=100us", "streams=3", "legacy=1")),
                ("dependent", 1, ("interleaved", "kernel=100us", "dependent=1")),
                ("captured", 1, ("captured", "kernel=100us", "graph=20")),
                ("contexts", 1, ("contexts", "kernel=100us")),
                ("forks", 1, ("forks", "kernel=100us")),
                ("threads", 1, ("threads", "kernel=30us", "threads=32", "streams=16", "round=38.4ms")),
                ("chain", 2, ("chain", "kernel=100us", "processes=2")),
            )
        ),
        Load("copies", ("async", "kernel=1ms", "copy=262144"), MS, saturates=False),
        Load("training", ("train", "copy=1048576"), 2 * MS, saturates=False),
        Load("decode", ("decode", "kernel=100us", "graph=20", "gap=500us"), 2 * MS, saturates=False),
    )
}
