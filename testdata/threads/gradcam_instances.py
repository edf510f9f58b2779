"""A new GradCAM object for each image, none of which takes its hooks back (jacobgil/pytorch-grad-cam#132).

Agreed cause: ActivationsAndGradients is not released, and its hooks stay registered on the model.
Truth: one activation and one gradient of 8 x 32 x 32 x 32 floats, 1,048,576 B each, an image: 2,097,152 B a step. All old hooks see the same two tensors.
Lines: `self.features(x)` (the activation) and `output[...].sum().backward()` (the gradient).
Holder: the hooks of `model.features[2]`, which lead to ActivationsAndGradients.activations and .gradients.
Advice: remove the hooks. --fixed: cam.release() after each image.
"""

import sys

import torch
from pace import Pace
from torch import nn


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1))
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        x = self.features(x)
        return self.head(x.mean((2, 3)))


class ActivationsAndGradients:
    def __init__(self, model, layer):
        self.model, self.activations, self.gradients = model, [], []
        self.handles = [layer.register_forward_hook(self.save_activation), layer.register_full_backward_hook(self.save_gradient)]

    def save_activation(self, module, inputs, output):
        self.activations.append(output.detach())

    def save_gradient(self, module, inputs, outputs):
        self.gradients.append(outputs[0].detach())

    def release(self):
        for handle in self.handles:
            handle.remove()


def explain(model, image):
    cam = ActivationsAndGradients(model, model.features[2])
    output = model(image)
    output[:, 3].sum().backward()
    weights = cam.gradients[-1].mean((2, 3), keepdim=True)
    heatmap = (weights * cam.activations[-1]).sum(1)
    if "--fixed" in sys.argv:
        cam.release()
    return heatmap


def main():
    model, pace = Classifier().cuda().eval(), Pace(0.05)
    while pace():
        explain(model, torch.rand(8, 3, 32, 32, device="cuda"))
        model.zero_grad()


main()
