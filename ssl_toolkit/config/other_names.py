"""Names that other tools and older configurations use for our settings."""

from __future__ import annotations

OTHER_NAMES = {
    "learning_rate": "lr",
    "lr_rate": "lr",
    "base_lr": "lr",
    "epochs": "steps",
    "iterations": "steps",
    "max_steps": "steps",
    "num_train_iter": "steps",
    "num_eval_iter": "eval_every",
    "num_log_iter": "log_every",
    "arch": "backbone",
    "net": "backbone",
    "model": "backbone",
    "model_name": "backbone",
    "algorithm_name": "algo",
    "alg": "algo",
    "batchsize": "batch_size",
    "bs": "batch_size",
    "num_workers": "workers",
    "gpu": "device",
    "save_dir": "output",
    "output_dir": "output",
    "data_dir": "data",
    "data_path": "data",
    "n_labeled": "num_labels",
    "num_labeled": "num_labels",
    "img_size": "image_size",
    "threshold": "confidence_threshold",
    "p_cutoff": "confidence_threshold",
    "tau": "confidence_threshold",
    "uratio": "unlabeled_ratio",
    "mu": "unlabeled_ratio",
    "ulb_loss_ratio": "unsupervised_weight",
    "lambda_u": "unsupervised_weight",
    "lambda_p": "pair_weight",
    "ema_m": "ema.decay",
    "ema_decay": "ema.decay",
    "weight_decay": "optimizer.weight_decay",
    "wd": "optimizer.weight_decay",
    "momentum": "optimizer.momentum",
    "nesterov": "optimizer.nesterov",
    "clip_grad": "optimizer.clip_norm",
    "max_grad_norm": "optimizer.clip_norm",
    "warmup": "schedule.warmup_steps",
    "amp": "precision",
    "accumulate": "optimizer.accumulation_steps",
    "gradient_accumulation_steps": "optimizer.accumulation_steps",
    "feature_lr": "optimizer.backbone_lr",
    "keep": "keep_checkpoints",
    "lambda_per": "mixup_per",
    "anchors": "train_on",
    "guess": "pseudo_labels_from",
}
"""Our keys by the names of other tools, and of earlier versions, which also wrote ``labelled``."""


def our_name(name: str) -> str | None:
    """Return our key for a name of another tool; None if it is not known."""
    return OTHER_NAMES.get(american(name))


def american(name: str) -> str:
    """Return a key or flag in the spelling of keys."""
    return name.lstrip("-").replace("-", "_").lower().replace("labelled", "labeled")
