"""Predict how long a step takes with given workers and samples: a model with a prior, fitted to a job's reports.

The model is Pollux's (OSDI 2021): a pass over m samples takes T_grad = a + b m; the gradients then travel for T_sync, 0
with one worker, c + d (n - 2) with n workers on one node, and likewise with larger c and d across nodes. The two
overlap, so that a step takes (T_grad^g + T_sync^g)^(1/g), with a g of its own across nodes. All is fitted as
logarithms, where errors are shares. Each parameter has a prior, as wide as jobs differ: a job that has had one worker
is expected to scale well, and its sigma says how uncertain that is. The fit is least squares with the analytic
Jacobian; the sigma of a prediction follows from the curvature at the fit (Laplace).
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

Floats = NDArray[np.float64]

# relative difference expected between a measured step and the model: placements and networks vary as much
NOISE: Final = 0.2
# Logarithms of: a and b m over the first pass; c over the first pass; d over c; c and d across nodes over those on one;
# g - 1 on one node and across nodes
CENTRES: Final = np.log([0.5, 0.5, 0.05, 0.01, 3.0, 1.0, 0.5, 2.0])
WIDTHS: Final = np.array([1.0, 1.0, 1.5, 1.0, 1.0, 1.0, 0.7, 0.7])
STEEPEST: Final = 9.0  # upper bound of g - 1: beyond it only the longer of T_grad and T_sync counts


class MeasuredSteps(msgspec.Struct, frozen=True):
    """Steps of one kind, as logarithms of seconds. `compute` is one pass without the wait for peers."""

    workers: Floats
    nodes: Floats
    samples: Floats  # of one worker in one pass
    compute: Floats
    step: Floats


class StepModel(msgspec.Struct, frozen=True):
    """The logarithms of the parameters, and their covariance."""

    parameters: Floats
    covariance: Floats

    def pass_s(self, samples: Floats) -> Floats:
        a, b = np.exp(self.parameters[:2])
        return np.asarray(a + b * samples)

    def step_s(self, workers: Floats, nodes: Floats, samples: Floats) -> Floats:
        return np.asarray(np.exp(_predicted(self.parameters, workers, nodes, samples)[1]))

    def sigma(self, workers: Floats, nodes: Floats, samples: Floats) -> Floats:
        """Return the standard deviation of the logarithm of a step's time."""
        slopes = log_slopes(self.parameters, workers, nodes, samples)[1]
        return np.asarray(np.sqrt(np.einsum("ij,jk,ik->i", slopes, self.covariance, slopes) + NOISE**2))


def fit(seen: MeasuredSteps) -> StepModel:
    """Fit a model to at least one measured kind of step. The result depends on these alone, and not on earlier fits."""
    first = float(np.exp(seen.compute[0]))
    centres = CENTRES + np.array([np.log(first), np.log(first / seen.samples[0]), np.log(first), 0, 0, 0, 0, 0])
    where = (seen.workers, seen.nodes, seen.samples)
    told = np.concatenate([seen.compute, seen.step])

    def residuals(x: Floats) -> Floats:
        return np.concatenate([(np.concatenate(_predicted(x, *where)) - told) / NOISE, (x - centres) / WIDTHS])

    def jacobian(x: Floats) -> Floats:
        return np.vstack([np.vstack(log_slopes(x, *where)) / NOISE, np.diag(1 / WIDTHS)])

    found = least_squares(residuals, centres, jacobian, method="lm", ftol=1e-4, xtol=1e-4, max_nfev=50)
    slopes = jacobian(found.x)
    return StepModel(found.x, np.linalg.inv(slopes.T @ slopes))


def _sync(x: Floats, workers: Floats, nodes: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the logarithm of T_sync, the share of it due to workers beyond two, and 1 where it spans nodes, else 0."""
    across = (nodes > 1).astype(float)
    beyond = np.maximum(workers - 2, 0) * np.exp(x[3] + across * x[5])
    return x[2] + across * x[4] + np.log1p(beyond), beyond / (1 + beyond), across


def _predicted(x: Floats, workers: Floats, nodes: Floats, samples: Floats) -> tuple[Floats, Floats]:
    grad = np.log(np.exp(x[0]) + np.exp(x[1]) * samples)
    sync, _, _ = _sync(x, workers, nodes)
    power = 1 + np.minimum(np.exp(np.where(nodes > 1, x[7], x[6])), STEEPEST)
    together = grad + np.logaddexp(0, power * (sync - grad)) / power
    return grad, np.where(workers > 1, together, grad)


def log_slopes(x: Floats, workers: Floats, nodes: Floats, samples: Floats) -> tuple[Floats, Floats]:
    """Return the derivatives of ln T_grad and ln T_step by each parameter: a row for each kind of step."""
    a, b = np.exp(x[0]), np.exp(x[1])
    share = a / (a + b * samples)
    grad = np.log(a + b * samples)
    sync, beyond, across = _sync(x, workers, nodes)
    shape = np.exp(np.where(nodes > 1, x[7], x[6]))
    power = 1 + np.minimum(shape, STEEPEST)
    weight = np.where(workers > 1, 1 / (1 + np.exp(np.clip(-power * (sync - grad), -500, 500))), 0.0)
    together = grad + np.logaddexp(0, power * (sync - grad)) / power
    bend = ((1 - weight) * grad + weight * sync - together) / power
    bend = np.where((workers > 1) & (shape < STEEPEST), bend * shape, 0.0)
    none = np.zeros_like(grad)
    of_grad = np.stack([share, 1 - share, none, none, none, none, none, none], axis=1)
    rest = 1 - weight
    of_step = [rest * share, rest * (1 - share), weight, weight * beyond, weight * across, weight * beyond * across]
    return of_grad, np.stack([*of_step, bend * (1 - across), bend * across], axis=1)
