"""decode.py FILE: read a trace with Perfetto's own bindings, check what every trace must keep, and print what is in it as JSON.

Reads the format on its own, as trace_processor does: interned data per sequence, tracks by uuid, defaults of the sequence.
"""
import collections
import gzip
import json
import sys

from google.protobuf import unknown_fields
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

CLEARED, NEEDS = 1, 2
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
INTERNED = [
    'event_categories', 'event_names', 'debug_annotation_names', 'function_names', 'mapping_paths', 'source_paths', 'build_ids', 'mappings',
    'frames', 'callstacks',
]


def known(message):
    """Every field that was written is one that Perfetto has, of the type that it has."""
    assert not unknown_fields.UnknownFieldSet(message), message
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for item in value if field.is_repeated else [value]:
                known(item)


class Sequence:
    def __init__(self):
        self.tables = None
        self.track = None
        self.time = 0

    def take(self, packet):
        if packet.sequence_flags & CLEARED:
            self.tables = {name: {} for name in INTERNED}
            self.track = packet.trace_packet_defaults.track_event_defaults.track_uuid
        if packet.HasField('timestamp'):
            assert packet.timestamp >= self.time, 'out of order'
            self.time = packet.timestamp
            assert packet.sequence_flags & NEEDS and self.tables is not None
        for field, items in packet.interned_data.ListFields():
            for item in items:
                table = self.tables[field.name]
                assert item.iid and item.iid not in table, (field.name, item.iid)
                table[item.iid] = item

    def stack(self, iid):
        """Names of the frames, leaf first."""
        return [name for name, _, _ in self.frames(iid)]

    def frames(self, iid):
        """What trace_processor tells frames apart by, leaf first."""
        out, tables = [], self.tables
        for frame_id in tables['callstacks'][iid].frame_ids:
            frame = tables['frames'][frame_id]
            mapping = tables['mappings'][frame.mapping_id]
            path = tables['mapping_paths'][mapping.path_string_ids[0]].str.decode()
            if frame.source_path_iid:
                assert tables['source_paths'][frame.source_path_iid].str.decode() == path
                assert frame.line_number == frame.rel_pc
            if mapping.build_id:
                assert tables['build_ids'][mapping.build_id].str
            out.insert(0, (tables['function_names'][frame.function_name_id].str.decode(), path, frame.rel_pc))
        return out


class Decoder:
    def __init__(self):
        self.sequences = collections.defaultdict(Sequence)
        self.tracks = {}
        self.open = collections.defaultdict(list)
        self.profiles = collections.defaultdict(int)
        self.out = {
            'packets': 0, 'clocks': {}, 'attributes': {}, 'processes': {}, 'threads': [], 'thread_names': {}, 'counters': [], 'instants': [],
            'slices': [], 'dumps': [],
        }

    def packet(self, packet):
        self.out['packets'] += 1
        known(packet)
        assert packet.trusted_packet_sequence_id
        sequence = self.sequences[packet.trusted_packet_sequence_id]
        sequence.take(packet)
        which = packet.WhichOneof('data')
        if which:
            getattr(self, which)(packet, sequence)

    def clock_snapshot(self, packet, _):
        for clock in packet.clock_snapshot.clocks:
            self.out['clocks'][clock.clock_id] = clock.timestamp

    def trace_attributes(self, packet, _):
        for a in packet.trace_attributes.attribute:
            self.out['attributes'][a.key] = getattr(a, a.WhichOneof('value'))

    def track_descriptor(self, packet, _):
        track = packet.track_descriptor
        assert track.uuid and track.uuid not in self.tracks
        assert not track.parent_uuid or track.parent_uuid in self.tracks
        self.tracks[track.uuid] = track
        if track.HasField('process'):
            self.out['processes'][track.process.pid] = [track.process.process_name, *track.process.cmdline]
        if track.HasField('thread'):
            self.out['threads'].append([track.thread.pid, track.thread.tid])
            self.out['thread_names'][track.thread.tid] = track.thread.thread_name

    def place(self, uuid):
        """Process, thread or device, and name of a row. What torch.profiler puts into no process has 0."""
        track = self.tracks[uuid]
        if track.HasField('thread'):
            return [track.thread.pid, f'thread {track.thread.tid}', track.thread.thread_name]
        device = self.tracks[track.parent_uuid]
        if device.HasField('thread'):
            return [device.thread.pid, f'thread {device.thread.tid}', track.name]
        if not device.HasField('process') and not device.parent_uuid:
            return [0, device.name, track.name]
        if device.HasField('process'):
            return [device.process.pid, '', track.name]
        return [self.tracks[device.parent_uuid].process.pid, device.name, track.name]

    def track_event(self, packet, sequence):
        event, tables = packet.track_event, sequence.tables
        uuid = event.track_uuid or sequence.track
        place = self.place(uuid)
        if event.type == COUNTER:
            ours = event.HasField('counter_value')
            assert ours == (self.tracks[uuid].counter.unit == proto.CounterDescriptor.UNIT_SIZE_BYTES)
            assert ours == bool(self.tracks[uuid].counter.y_axis_share_key)
            value = event.counter_value if ours else event.double_counter_value
            self.out['counters'].append([*place, packet.timestamp, value])
            return
        if event.type == END:
            self.open[uuid].pop()['end'] = packet.timestamp
            return
        values, args = {}, {}
        for a in event.debug_annotations:
            name, value = tables['debug_annotation_names'][a.name_iid].name, getattr(a, a.WhichOneof('value'))
            (values if type(value) is int and value >= 0 else args)[name] = value
        said = {
            'track': place, 'uuid': uuid, 'time': packet.timestamp, 'name': tables['event_names'][event.name_iid].name,
            'stack': sequence.stack(event.callstack_iid) if event.callstack_iid else [], 'values': values, 'args': args,
            'category': [tables['event_categories'][i].name for i in event.category_iids],
            'flows': list(event.flow_ids), 'flowends': list(event.terminating_flow_ids),
        }
        if event.HasField('callstack_weight'):
            said['weight'] = int(event.callstack_weight)
        if event.type == BEGIN:
            nests = place[1].startswith('thread ') or place[0] == 0  # of torch.profiler
            assert nests or not self.open[uuid], 'slices of one lane overlap'
            said['depth'] = len(self.open[uuid])
            self.open[uuid].append(said)
            self.out['slices'].append(said)
        else:
            assert event.type == INSTANT
            self.out['instants'].append(said)

    def profile_packet(self, packet, sequence):
        profile = packet.profile_packet
        number = packet.trusted_packet_sequence_id
        assert profile.index == self.profiles[number]
        self.profiles[number] += 1
        (dump,) = profile.process_dumps
        assert dump.timestamp == packet.timestamp and dump.sampling_interval_bytes == 1
        samples, stacks = [], set()
        for s in dump.samples:
            stacks.add(str(sequence.frames(s.callstack_id)))
            samples.append([sequence.stack(s.callstack_id), s.self_allocated, s.self_freed, s.alloc_count, s.free_count])
        assert len(stacks) == len(samples), 'a stack is there twice'
        self.out['dumps'].append({
            'sequence': number, 'time': dump.timestamp, 'pid': dump.pid, 'heap': dump.heap_name, 'samples': samples,
        })


def main():
    data = open(sys.argv[1], 'rb').read()
    if data[:2] == b'\x1f\x8b':
        data = gzip.decompress(data)
    decoder = Decoder()
    for packet in proto.Trace.FromString(data).packet:
        decoder.packet(packet)
    json.dump(decoder.out, sys.stdout)


main()
