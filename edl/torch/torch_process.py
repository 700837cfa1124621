"""The one framework and the one seat of this process, which all modules of `edl.torch` share."""

from __future__ import annotations

from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from edl.torch.tensor_ring import kind
from edl.torch.torch_framework import TorchFramework
from edl.torch.torch_unwrapped import InnerUpdates, hook_of
from edl.trainer.trainer import Trainer

framework = TorchFramework()
trainer = Trainer(framework, kind, world=framework.join_world)
register_optimizer_step_post_hook(hook_of(framework.unwrapped, lambda: trainer.committed))
inner = InnerUpdates(framework.owners)
register_optimizer_step_pre_hook(inner.before)
register_optimizer_step_post_hook(inner.after)
