"""NCCL's own log: real ones of releases that open the plugin without a GPU, and the lines of others by their sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.base.nccl_log import Edge, Record, parse
from fairlead.base.nccl_verdict import Expected, differences

RECORDED = Path(__file__).parents[3] / "recorded" / "nccl" / "logs"
# What a release can say of each fault; the oldest do not say which library is missing.
KINDS = {
    "2.13.4-missing-library": "not-found",
    "2.14.3-missing-library": "not-found",
    "2.15.5-missing-library": "not-found",
    "2.16.5-missing-library": "not-found",
}


def line(text: str, level: str = "INFO", host: str = "nid001", pid: int = 7) -> str:
    if level == "WARN":
        return f"\n[2026-01-02 03:04:05] {host}:{pid}:{pid + 1} [0] plugin/net.cc:349 (ncclNetInit) NCCL WARN {text}"
    return f"{host}:{pid}:{pid + 1} [0] NCCL INFO {text}"


def log(*texts: str) -> Record:
    (record,) = parse("\n".join(t if t.startswith("\n") else line(t) for t in texts))
    return record


OFI = (
    "NET/OFI Initializing aws-ofi-nccl 1.16.3",
    "NET/OFI Using Libfabric version 2.1",
    "NET/OFI Using CUDA driver version 12080 with runtime 12080",
    "NET/OFI Using transport protocol SENDRECV (user set)",
    "NET/OFI Selected provider is cxi, fabric is cxi (found 4 nics)",
    "NET/OFI Support for global registrations: true",
    "NET/OFI Support for DMA-BUF registrations: true",
)
COMM = "ncclCommInitRank comm 0x55 rank 3 nranks 8 cudaDev 3 nvmlDev 3 busId c1000 commId 0x1f - Init COMPLETE"


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.log")), ids=lambda path: path.stem)
def test_real_log_names_its_cause(path: Path) -> None:
    (record,) = parse(path.read_text("utf-8"))
    expected = KINDS.get(path.stem, path.stem.partition("-")[2])
    # An ELF file for another processor is skipped by the loader: to NCCL it is not there.
    expected = {"architecture": "not-found", "loaded": ""}.get(expected, expected)
    assert [cause.kind for cause in record.causes[:1]] == ([expected] if expected else [])
    assert record.host == "vm" and not record.network and not record.complete
    if expected == "missing-library":
        assert record.causes[0].text.startswith("libdepx.so: cannot open shared object file")


def test_log_of_a_launch_gives_every_fact() -> None:
    record = log(
        "NCCL version 2.28.9+cuda12.8",
        "NCCL_NET_PLUGIN set by environment to libnccl-net.so",
        "Successfully loaded external network plugin /opt/fairlead/nccl/libnccl-net.so",
        "NET/Plugin: Loaded net plugin Libfabric (v11)",
        *OFI,
        "Initialized NET plugin Libfabric",
        "Assigned NET plugin Libfabric to comm",
        "Using network Libfabric",
        "comm 0x55 rank 3 nRanks 8 nNodes 2 localRanks 4 localRank 3 MNNVL 0",
        "Channel 00/0 : 3[3] -> 4[0] [send] via NET/Libfabric/3/GDRDMA",
        "Channel 01/0 : 4[0] -> 3[3] [receive] via NET/Libfabric/3/GDRDMA(PCI)/Shared",
        "Channel 02/0 : 3[3] -> 4[0] [send] via NET/Libfabric/1(2)",
        "Channel 00/0 : 3[3] -> 2[2] via P2P/CUMEM",
        COMM,
    )
    assert record == Record(
        host="nid001",
        pid=7,
        rank=3,
        ranks=8,
        nodes=2,
        version="2.28.9+cuda12.8",
        network="Libfabric",
        plugin="/opt/fairlead/nccl/libnccl-net.so",
        name="Libfabric",
        interface=11,
        asked="libnccl-net.so",
        release="1.16.3",
        libfabric="2.1",
        provider="cxi",
        nics=4,
        protocol="SENDRECV",
        dmabuf=True,
        edges=(
            Edge(3, 4, "Libfabric", 3, True),
            Edge(4, 3, "Libfabric", 3, True),
            Edge(3, 4, "Libfabric", 1, False),
        ),
        complete=True,
    )


def test_gpudirect_of_each_device_of_the_network_in_use() -> None:
    record = log(
        "NET/Socket : GPU Direct RDMA Disabled for HCA 0 'hsn0'",
        "NET/AWS Libfabric : GPU Direct RDMA Enabled for HCA 0 'cxi0'",
        "NET/AWS Libfabric : GPU Direct RDMA Disabled for HCA 1 'cxi1'",
        "GPU Direct RDMA Disabled for GPU 1 / HCA 3 (distance 9 > 8)",
        "Using network AWS Libfabric",
    )
    assert record.nics_gdr == (("cxi0", True), ("cxi1", False))
    [difference] = differences(record, Expected(nics_gdr=True))
    assert difference.kind == "gdr" and "cxi1" in difference.text and "cxi0" not in difference.text
    assert differences(record, Expected()) == ()


@pytest.mark.parametrize(
    ("text", "edge"),
    [
        ("Channel 00/0 : 0[3000] -> 8[3000] [send] via NET/AWS Libfabric/0/GDRDMA", (0, 8, "AWS Libfabric", 0, True)),
        ("Channel 00/1 : 8[c1000] -> 0[3000] [receive] via NET/IB/2/Shared", (8, 0, "IB", 2, False)),
        ("Channel 15/0 : 7[7] -> 8[0] [send] via NET/Socket/0", (7, 8, "Socket", 0, False)),
    ],
)  # fmt: skip
def test_edges_are_read_as_each_release_writes_them(text: str, edge: tuple) -> None:
    assert log(text).edges == (Edge(*edge),)


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        # 2.22 to 2.30
        (["NET/Plugin: libnccl-net.so: libfabric.so.1: cannot open shared object file: No such file or directory"], "missing-library"),
        (["NET/Plugin: libnccl-net.so: /lib64/libc.so.6: version `GLIBC_2.38' not found (required by /x/libnccl-net.so)"], "not-loadable"),
        (["NET/Plugin: libnccl-net.so: /x/libnccl-net.so: undefined symbol: fi_getinfo"], "not-loadable"),
        (["NET/Plugin: libnccl-net.so: /x/libnccl-net.so: file too short"], "not-loadable"),
        (["NET/Plugin: Could not find: ofi libnccl-net-ofi.so. Using internal network plugin."], "not-found"),
        (["NET/Plugin: Could not find: libnccl-net.so"], "not-found"),
        (["External network plugin libnccl-net.so is unsupported"], "no-interface"),
        (["NET/Plugin: Failed to find ncclNetPlugin_v8 symbol.", "NET/Plugin: Loaded net plugin Libfabric (v7)"], ""),
        # of every release
        ([*OFI[:2], "NET/OFI No eligible providers were found", line("NET/OFI Unable to find a protocol that worked.  Failing initialization.", "WARN"),
          line("NET/OFI aws-ofi-nccl initialization failed", "WARN"), "Failed to initialize NET plugin Libfabric",
          "NET/IB : No device found.", "Using network Socket"], "no-nic"),
        ([*OFI[:5], line("NET/OFI Couldn't open a fabric access domain. RC: -13, ERROR: Permission denied", "WARN")], "vni"),
        ([line("NET/OFI Couldn't open a fabric access domain. RC: -12, ERROR: Cannot allocate memory", "WARN")], "open-failed"),
        ([line("NET/OFI Failed to find CUDA Driver library: libcuda.so: cannot open shared object file: No such file or directory", "WARN"),
          line("NET/OFI aws-ofi-nccl initialization failed", "WARN")], "cuda"),
        ([line("Error: network OFI not found.", "WARN")], "wrong-name"),
        (["NET/Plugin: Could not find: libnccl-net.so", line("Failed to initialize any NET plugin", "WARN")], "not-found"),
        (["NET/Plugin: Loaded net plugin FOO (v8)", "NET/IB : No device found.", "Using network Socket"], "init-failed"),
        (["NET/IB : No device found.", "NET/Socket : Using [0]eth0:10.0.0.1<0>", "Using network Socket"], "no-ib"),
        (["NET/IB : No device found.", "Failed to initialize NET plugin IB", "Initialized NET plugin Socket", "Using network Socket"], "no-ib"),
        ([line("Bootstrap : no socket interface found", "WARN")], "no-socket"),
        # aws-ofi-nccl since 1.16 writes a signature where others write a file
        (["\n[2026-01-02 03:04:05] n:7:8 [0] int nccl_net_ofi_create_plugin(nccl_net_ofi_plugin_t**):281 NCCL WARN NET/OFI Unable to find a protocol that worked."], "no-nic"),
        (["NET/Socket : Using [0]eth0:10.0.0.1<0>", "Using network Socket"], ""),
    ],
)  # fmt: skip
def test_cause_is_the_one_that_explains_most(texts: list[str], kind: str) -> None:
    causes = log(*texts).causes
    assert [cause.kind for cause in causes[:1]] == ([kind] if kind else [])


def test_line_of_the_tuner_is_no_cause() -> None:
    why = "libnccl-tuner.so: cannot open shared object file: No such file or directory"
    assert (
        log(f"NET/Plugin: Plugin load returned 2 : {why} : when loading libnccl-tuner.so").causes
        == ()
    )


def test_output_of_a_whole_job_gives_a_record_for_each_process() -> None:
    text = "\n".join(
        [
            "NCCL version 2.27.5+cuda12.9",
            "epoch 1 loss 0.5",
            line("Using network IB", pid=8),
            line(
                "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>", pid=8
            ),
            line("Using network Socket", host="nid002", pid=8),
            "nid001:9 something else",
        ]
    )
    first, second = parse(text)
    assert (first.host, first.network, first.version) == ("nid001", "IB", "2.27.5+cuda12.9")
    assert first.devices == ("mlx5_0:1/IB", "mlx5_1:1/RoCE")
    assert (second.host, second.network, second.version) == ("nid002", "Socket", "2.27.5+cuda12.9")


def test_log_without_a_line_of_nccl_gives_no_record() -> None:
    assert parse("") == () and parse("hello\nNCCL INFO\n") == ()


def test_rccl_is_read_too() -> None:
    record = log("RCCL version : 2.22.3-develop:1b2c", "Using network AWS Libfabric", COMM)
    assert (record.version, record.network) == ("2.22.3-develop:1b2c", "AWS Libfabric")
    assert record.complete


@pytest.mark.parametrize(
    ("texts", "interface"),
    [
        (["NCCL version 2.18.3+cuda12.2", "Using network AWS Libfabric"], 6),
        (["NCCL version 2.21.5+cuda12.4", "Using network AWS Libfabric"], 8),
        (["NCCL version 2.21.5+cuda12.4", "NET/Plugin: Failed to find ncclNetPlugin_v8 symbol.",
          "NET/Plugin: Loaded net plugin AWS Libfabric (v7)", "Using network AWS Libfabric"], 7),
        (["NCCL version 2.21.5+cuda12.4", "NET/Plugin: Failed to find ncclNetPlugin_v8 symbol.", "Using network AWS Libfabric"], 0),
        (["NCCL version 2.21.5+cuda12.4", "Using network Socket"], 0),
        (["NCCL version 2.16.5+cuda12.0", "Using network AWS Libfabric"], 0),
        (["Using network AWS Libfabric"], 0),
    ],
)  # fmt: skip
def test_newest_interface_is_known_where_a_release_does_not_name_it(
    texts: list[str], interface: int
) -> None:
    assert log(*texts).interface == interface
