"""Transformer-like blocks whose activations are computed again in the backward pass, of samples that are all of the same length."""

import argparse

import loop
import sidecar
import torch
import variants


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=256, help="of a sample")
    loop.arguments(parser, steps=4)
    options = sidecar.arguments(parser).parse_args()
    side = sidecar.Sidecar(options)
    model, optimizer = variants.trainer(layers=10, recompute=True)
    for _ in loop.counted(options):
        variants.train(model, optimizer, torch.randn(options.batch, options.length, 384, device="cuda"))
    side.finish()


if __name__ == "__main__":
    main()
