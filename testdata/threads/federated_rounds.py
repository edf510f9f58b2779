"""Federated learning: the server keeps the weights that each client sent in each round.

Truth: a state has 512 x 512 + 512 + 512 x 32 + 32 floats = 1,116,288 B; 4 clients a round, each of 5 steps: 4,465,152 B a round, 223,257.6 B a step.
Line: `update = {name: value.clone() ...}` in Client.train. Holder: `server.history[*]['client*']` by round and client. --fixed: the last round.
"""

import sys

import torch
from pace import Pace
from torch import nn


def build():
    return nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 32)).cuda()


class Client:
    def __init__(self, name):
        self.name, self.model = name, build()

    def train(self, weights, pace):
        self.model.load_state_dict(weights)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        for _ in range(5):
            loss = self.model(torch.rand(64, 512, device="cuda")).logsumexp(1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            running = pace()
        update = {name: value.clone() for name, value in self.model.state_dict().items()}
        return update, running


class Server:
    def __init__(self):
        self.model, self.history, self.pace = build(), {}, Pace(0.03)
        self.clients = [Client(f"client{i}") for i in range(4)]

    def round(self, number):
        if "--fixed" in sys.argv:
            self.history.clear()
        self.history[number] = {}
        for client in self.clients:
            update, running = client.train(self.model.state_dict(), self.pace)
            self.history[number][client.name] = update
        states = self.history[number].values()
        mean = {name: sum(state[name] for state in states) / len(states) for name in self.model.state_dict()}
        self.model.load_state_dict(mean)
        return running


server, number = Server(), 0
while server.round(number):
    number += 1
