"""A cube of cells over the ranks of a communicator: a slab of planes each, its Fourier transform, and its particles.

The result does not depend on the number of ranks, rounding apart; there may be as many as planes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

Array = npt.NDArray[np.float64]
Complex = npt.NDArray[np.complex128]
CORNERS = [(i, j, k) for i in (0, 1) for j in (0, 1) for k in (0, 1)]


class Slabs:
    """The planes ``low`` to ``high`` of ``cells``^3, along x; of a spectrum, along ky."""

    def __init__(self, comm: MPI.Intracomm, cells: int):
        if comm.size > cells:
            raise SystemExit(f"{comm.size} ranks are more than {cells} planes")
        self.comm, self.cells = comm, cells
        self.edges = [cells * rank // comm.size for rank in range(comm.size + 1)]
        self.low, self.high = self.edges[comm.rank : comm.rank + 2]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of this rank's part of a field."""
        return self.high - self.low, self.cells, self.cells

    def exchange(self, blocks: list[np.ndarray], row: tuple[int, ...]) -> list[np.ndarray]:
        """Gives ``blocks[r]`` to rank r, and returns what each rank gives this one; a block is any number of rows."""
        rows = np.array([len(block) for block in blocks])
        theirs = np.empty_like(rows)
        self.comm.Alltoall(rows, theirs)
        width = int(np.prod(row))
        sent = np.concatenate([np.ascontiguousarray(block).ravel() for block in blocks])
        came = np.empty(int(theirs.sum()) * width, sent.dtype)
        self.comm.Alltoallv([sent, rows * width], [came, theirs * width])
        return np.split(came.reshape(-1, *row), np.cumsum(theirs)[:-1])

    def forward(self, field: Array) -> Complex:
        """numpy.fft.rfftn of a field ``(planes, N, N)``, as ``(ky of this rank, N, N // 2 + 1)`` with kx second."""
        spectrum = np.fft.rfft2(field).transpose(1, 0, 2)  # ky, x, kz
        blocks = np.split(spectrum, self.edges[1:-1])
        # Rows are lines along kz: of each rank, its planes of x for each of my ky.
        lines = self.exchange([b.reshape(-1, b.shape[2]) for b in blocks], spectrum.shape[2:])
        mine = [b.reshape(self.high - self.low, -1, spectrum.shape[2]) for b in lines]
        return np.fft.fft(np.concatenate(mine, axis=1), axis=1)

    def backward(self, spectrum: Complex) -> Array:
        """The field of a spectrum, as :meth:`forward` gives it."""
        parts = np.split(np.fft.ifft(spectrum, axis=1), self.edges[1:-1], axis=1)  # ky, x, kz
        lines = self.exchange([p.reshape(-1, p.shape[2]) for p in parts], spectrum.shape[2:])
        mine = [b.reshape(-1, self.high - self.low, spectrum.shape[2]) for b in lines]
        planes = np.concatenate(mine, axis=0).transpose(1, 0, 2)
        return np.fft.irfft2(planes, s=(self.cells, self.cells))

    def waves(self) -> tuple[Array, Array, Array]:
        """Wave numbers kx, ky, kz of this rank's part of a spectrum, in radians a cell; they broadcast."""
        k = 2 * np.pi * np.fft.fftfreq(self.cells)
        kz = 2 * np.pi * np.fft.rfftfreq(self.cells)
        return k[None, :, None], k[self.low : self.high, None, None], kz[None, None, :]

    def gradient(self, spectrum: Complex) -> Array:
        """What has ``spectrum`` as its negative divergence, and no curl: ``(planes, N, N, 3)``."""
        k = self.waves()
        square = k[0] ** 2 + k[1] ** 2 + k[2] ** 2
        potential = 1j * spectrum / np.where(square == 0, np.inf, square)
        top = [np.where(np.isclose(np.abs(part), np.pi), 0, part) for part in k]  # has no sign
        return np.stack([self.backward(potential * part) for part in top], axis=-1)

    def padded(self, field: np.ndarray, before: int, after: int) -> np.ndarray:
        """This rank's planes with ``before`` more in front and ``after`` behind, from the ranks that have them."""
        blocks = []
        for rank in range(self.comm.size):
            low, high = self.edges[rank] - before, self.edges[rank + 1] + after
            wanted = np.arange(low, high) % self.cells
            mine = wanted[(wanted >= self.low) & (wanted < self.high)]
            blocks.append(field[mine - self.low])
        rows = iter(self.exchange(blocks, field.shape[1:]))
        by_rank = [iter(block) for block in rows]
        planes = np.arange(self.low - before, self.high + after) % self.cells
        owners = np.searchsorted(self.edges, planes, "right") - 1
        return np.stack([next(by_rank[owner]) for owner in owners])

    def settle(self, particles: Array) -> Array:
        """Moves particles, rows that begin with a position in cells, to the ranks that have their cells."""
        particles[:, :3] %= self.cells
        particles[:, :3] -= self.cells * (particles[:, :3] >= self.cells)  # -1e-17 % N is N
        owner = np.searchsorted(self.edges, particles[:, 0], "right") - 1
        return np.concatenate(self._sorted(particles, owner))

    def home(self, particles: Array) -> Array:
        """Rows that end with a particle's number, back in the order and on the rank where they began."""
        plane = particles[:, -1] // self.cells**2
        rows = np.concatenate(
            self._sorted(particles, np.searchsorted(self.edges, plane, "right") - 1)
        )
        return rows[np.argsort(rows[:, -1])]

    def _sorted(self, rows: Array, owner: npt.NDArray[np.int64]) -> list[Array]:
        order = np.argsort(owner, kind="stable")
        cuts = np.searchsorted(owner[order], np.arange(1, self.comm.size))
        return self.exchange(np.split(rows[order], cuts), rows.shape[1:])

    def corners(self, positions: Array) -> list[tuple[npt.NDArray[np.int64], Array]]:
        """Cloud in cell: for each corner, the cell of every particle, in this slab and one plane more, and its share."""
        cell = np.floor(positions).astype(np.int64)
        inside = positions - cell
        weights = np.stack([1 - inside, inside])
        cell[:, 0] -= self.low
        found = []
        for i, j, k in CORNERS:
            y, z = (cell[:, 1] + j) % self.cells, (cell[:, 2] + k) % self.cells
            index = ((cell[:, 0] + i) * self.cells + y) * self.cells + z
            found.append((index, weights[i, :, 0] * weights[j, :, 1] * weights[k, :, 2]))
        return found

    def deposit(self, positions: Array) -> Array:
        """The density contrast of settled particles, one a cell on average, as ``(planes, N, N)``."""
        planes, size = self.shape[0], self.cells**2
        total = np.zeros((planes + 1) * size)
        for index, weight in self.corners(positions):
            total += np.bincount(index, weight, len(total))
        field = total.reshape(planes + 1, self.cells, self.cells)
        ahead = np.empty_like(field[0])
        right, left = (self.comm.rank + 1) % self.comm.size, (self.comm.rank - 1) % self.comm.size
        self.comm.Sendrecv(np.ascontiguousarray(field[-1]), right, recvbuf=ahead, source=left)
        field[0] += ahead
        return field[:-1] - 1

    def read(self, field: Array, positions: Array) -> Array:
        """A field ``(planes, N, N, 3)`` where settled particles are, as ``(particles, 3)``."""
        flat = self.padded(field, 0, 1).reshape(-1, field.shape[-1])
        value = np.zeros((len(positions), field.shape[-1]))
        for index, weight in self.corners(positions):
            value += weight[:, None] * flat[index]
        return value
