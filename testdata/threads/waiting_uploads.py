"""A camera service hands each clip to a thread of its own, which waits for an acknowledgement that never comes: the ids differ in type.

Truth: 1,572,864 B every four frames, in the local variable `clip` of the threads in `EventUploader._publish()`. Line: `clip = torch.stack(frames)`.
Advice: let the threads end, as by a timeout. It has no twin.
"""

import collections
import queue
import threading
import torch
import torch.nn as nn
from pace import Pace

DEVICE = "cuda"
CLIP_LEN, SIDE = 8, 128


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 8, 5, stride=4, padding=2), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.ReLU()
        )
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.net(x).mean((2, 3)))


class Broker(threading.Thread):
    """Message bus: takes a clip, answers with an acknowledgement."""

    def __init__(self):
        super().__init__(daemon=True, name="broker")
        self.inbox, self.on_ack = queue.Queue(), None

    def run(self):
        while True:
            msg = self.inbox.get()
            self.on_ack({"id": str(msg["id"]), "ok": True})


class EventUploader:
    def __init__(self, broker):
        self.broker = broker
        self.waiting = {}
        broker.on_ack = self._ack

    def submit(self, event_id, frames):
        clip = torch.stack(frames)
        threading.Thread(target=self._publish, args=(event_id, clip), name=f"upload-{event_id}", daemon=True).start()

    def _publish(self, event_id, clip):
        preview = (clip[0] * 255).byte().cpu()
        done = threading.Event()
        self.waiting[event_id] = done
        self.broker.inbox.put({"id": event_id, "preview": preview})
        done.wait()
        del self.waiting[event_id]
        print(f"event {event_id} stored, clip of {len(clip)} frames", flush=True)

    def _ack(self, msg):
        ev = self.waiting.get(msg["id"])
        if ev is not None:
            ev.set()


def camera(rng):
    while True:
        yield torch.rand(3, SIDE, SIDE, generator=rng)


@torch.inference_mode()
def main():
    torch.manual_seed(0)
    model = Detector().to(DEVICE).eval()
    broker = Broker()
    uploader = EventUploader(broker)
    broker.start()
    ring = collections.deque(maxlen=CLIP_LEN)
    pace = Pace(0.06)
    for n, img in enumerate(camera(torch.Generator().manual_seed(2)), 1):
        frame = img.to(DEVICE)
        ring.append(frame)
        scores = model(frame[None]).softmax(-1).cpu()
        motion = n % 4 == 0
        if motion and len(ring) == CLIP_LEN:
            uploader.submit(n, list(ring))
        if n % 24 == 0:
            print(f"frame {n} person {scores[0, 1].item():.2f}", flush=True)
        if not pace():
            break


if __name__ == "__main__":
    main()
