"""Muon: momentum whose every update is made orthogonal, for the matrices inside the blocks.

Source: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

# coefficients of the quintic that drives singular values towards 1
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


class Muon:
    """One learning rate for all matrices; decoupled weight decay."""

    def __init__(self, matrices: Iterable[nn.Parameter], learning_rate: float) -> None:
        self.matrices = list(matrices)
        self.momenta = [torch.zeros_like(matrix) for matrix in self.matrices]
        self.learning_rate = learning_rate
        self.momentum = 0.95
        self.weight_decay = 0.05

    @torch.no_grad()
    def step(self, scale: float) -> None:
        """Update every matrix with `scale` times the learning rate, and drop the gradients."""
        rate = self.learning_rate * scale
        for matrix, momentum in zip(self.matrices, self.momenta, strict=True):
            assert matrix.grad is not None
            momentum.mul_(self.momentum).add_(matrix.grad)
            update = orthogonalize(matrix.grad.add(momentum, alpha=self.momentum))
            matrix.mul_(1 - rate * self.weight_decay)
            matrix.add_(update, alpha=-rate * max(1, matrix.shape[0] / matrix.shape[1]) ** 0.5)
            matrix.grad = None


def orthogonalize(matrix: Tensor, num_steps: int = 4) -> Tensor:
    """Return a matrix of the same shape and singular vectors with singular values near 1."""
    a, b, c = NEWTON_SCHULZ
    x: Tensor = matrix / (matrix.norm() + 1e-7)
    is_tall = x.shape[0] > x.shape[1]
    x = x.T if is_tall else x
    for _ in range(num_steps):
        gram: Tensor = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if is_tall else x
