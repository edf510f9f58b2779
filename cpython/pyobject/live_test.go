// SPDX-License-Identifier: Apache-2.0

package pyobject

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/process"
)

// program makes objects, and says where they are.
const program = `
import collections, functools, json, sys
class Slotted:
    __slots__ = ("kept",)
class Plain: pass
kept = [object()]
slotted, plain = Slotted(), Plain()
slotted.kept, plain.kept = kept, kept
held = {"list": kept, "tuple": (kept,), "dict": {"kept": kept}, "set": {frozenset([1])}, "slotted": slotted, "plain": plain,
        "closure": (lambda: kept), "default": (lambda x=kept: x)}
def closure():
    inner = kept
    return lambda: inner
held["closure"] = closure()
texts, numbers = {"key %d" % i: [i] for i in range(600)}, {1000 + i: [i] for i in range(600)}
for d in (texts, numbers):
    for key in list(d)[:100]: del d[key]
cached, unbounded = [functools.lru_cache(maxsize=most)(lambda x: [x]) for most in (1000, None)]
for x in range(70): cached(x % 64), unbounded(x)
bounds = [[collections.deque(range(90), 700), 90, 700], [collections.deque(range(90), 7), 7, 7], [cached, 64, 1000],
    [collections.deque(range(90)), 0, 0], [unbounded, 0, 0], [list(range(90)), 0, 0]]
sequences = [list(texts.values()), tuple(numbers.values())]
KEPT, MAX_TIMEOUT = 300, 86400
class Cache(dict):
    MOST = 64
    def __init__(self):
        self.capacity, self.batch, self.seen, self.store, self.log, self.parts = 50, 45, 1000, {n: n for n in range(40)}, [1] * 40, [1] * 40
        self.max_steps, self.losses, self.done, self.open = 500, [1] * 40, 70, [1] * 40
    def put(self, key):
        self.seen += 1
        if len(self.store) > self.capacity:
            self.store.pop(next(iter(self.store)))
    def trim(self):
        while len(self.log) > self.MOST: self.log.pop(0)
    def step(self):
        self.losses.append(1)
        return len(self.losses) % 10 == 0 or self.done > self.max_steps
    def finish(self):
        self.done += len(self.open)
        self.open.pop()
    def sample(self):
        return None if len(self.parts) < self.batch else self.parts[:self.batch]
class Indexed:
    def __init__(self):
        self.capacity, self.entries, self.users, self.order = 40, {n: n for n in range(40)}, {"u": [], "v": []}, list(range(39))
    def put(self, key, user):
        self.users[user].append(key)
        self.entries[key] = key
        while len(self.entries) > self.capacity: self.entries.popitem()
class Queued:
    def __init__(self):
        self.queue, self.max_queue, self.history, self.rest, self.timers = [0] * 5, 2000, [0] * 40, {n: n for n in range(5)}, [0] * 9
    def push(self, x):
        self.history.append(x)
        if len(self.queue) >= self.max_queue: self.queue.pop()
        self.rest[x] = x
    def wait(self):
        if len(self.timers) > 3: self.timers.remove(0)
        return min(len(self.history), MAX_TIMEOUT)
class Memory:
    def __init__(self):
        self.size, self.warm, self.entries, self.recent, self.waiting = 330, 400, [0] * 40, [0] * 41, [0] * 40
        self.open, self.outputs, self.first, self.count = [0] * 40, [0] * 40, [0] * 40, 0
        self.data = collections.OrderedDict.fromkeys(range(40))
        self.long = {n: n for n in range(40)}
        self.replay, self.old, self.seen, self.few = {n: n for n in range(40)}, [0] * 61, [0] * 40, collections.deque([0] * 40)
    def update(self, x):
        self.entries.append(x)
        while len(self.entries) > self.size: self.entries.pop(0)
    def note(self):
        if len(self.recent) > 40: self.recent.pop(0)
        if len(self.few) >= 100000: self.few.popleft()
    def train(self):
        if len(self.waiting) > self.warm: self.recent.pop()
        if len(self.open) > self.warm: self.count += 1
        self.open.pop()
        if len(self.data) > self.warm: self.data.move_to_end(0)
        if len(self.outputs) != self.warm: self.outputs.clear()
        if len(self.first) < self.warm: self.first.pop()
        if len(self.long) > self.warm:
            LONG
            self.long.popitem()
        if self.warm < len(self.replay): self.replay.popitem()
        if len(self.old) > 50: self.old.pop(0)
        self.seen.pop()
        return len(self.seen) % 1000
class Ordered(Indexed):
    def evict(self):
        if len(self.order) >= self.capacity: del self.entries[self.order.pop(0)]
class Optimizer:
    def __init__(self):
        self.state = collections.defaultdict(dict, {n: {} for n in range(5)})
        self.param_groups = [{"params": [0] * 7, "lr": 1}, {"params": [0] * 2}]
class Groups(Optimizer):
    def __init__(self): self.state, self.param_groups = {n: n for n in range(5)}, [{"lr": 1}]
class Plain:
    def __init__(self): self.state = {n: n for n in range(5)}
class SGD(Optimizer): pass
class Other(Plain):
    def __init__(self): self.state, self.param_groups = {n: n for n in range(5)}, [{"params": [0] * 7}]
sgd, groups, plain, other = SGD(), Groups(), Plain(), Other()
cache, ring, few, indexed, ordered, queued = Cache(), [0] * 40, [0] * 40, Indexed(), Ordered(), Queued()
cache.put(1), indexed.users["u"].clear(), queued.push(1)
history = []
def note(x):
    history.append(x)
    if len(x) > KEPT: x.pop()
note([1])
def push(x):
    if len(ring) >= KEPT: ring.pop(0)
    ring.append(x)
def push_few(x):
    few.append(x)
    if len(few) > 120: few.pop(0)
main, memory = sys.modules["__main__"], Memory()
for n in range(100): memory.update(0), memory.note(), memory.note
for n in range(60): memory.entries.pop()
limits = [[cache, cache.store, "store", 40, 50], [cache, cache.log, "log", 40, 64], [cache, cache.parts, "parts", 40, 0],
    [indexed, indexed.users, "users", 2, 0], [ordered, ordered.order, "order", 39, 40],
    [queued, queued.queue, "queue", 5, 2000], [queued, queued.history, "history", 41, 0], [queued, queued.rest, "rest", 6, 0],
    [queued, queued.timers, "timers", 9, 0],
    [main, history, "history", 1, 0], [main, ring, "ring", 40, 300], [main, few, "few", 40, 120],
    [memory, memory.entries, "entries", 80, 330], [memory, memory.recent, "recent", 40, 40], [memory, memory.waiting, "waiting", 40, 0],
    [memory, memory.replay, "replay", 40, 400], [memory, memory.old, "old", 61, 0], [memory, memory.seen, "seen", 40, 0],
    [memory, memory.few, "few", 40, 100000], [memory, memory.open, "open", 40, 0], [memory, memory.data, "data", 40, 0],
    [memory, memory.outputs, "outputs", 40, 0], [memory, memory.first, "first", 40, 0], [memory, memory.long, "long", 40, 400],
    [cache, cache.losses, "losses", 40, 0], [cache, cache.open, "open", 40, 0], [main, held, "held", 0, 0],
    [sgd, sgd.state, "state", 5, 9], [groups, groups.state, "state", 5, 0], [plain, plain.state, "state", 5, 0],
    [other, other.state, "state", 5, 0]]
def looped(a):
    for x in a: x
    for i, (y, z) in enumerate([(1, 2)] * 3): y, z
    for n, value in {1: 2}.items(): value
    for cell in a: lambda: cell
    for spare["of"] in a: pass
    for first, *rest in [(1, 2)]: pass
    w, v = 1, 2
spare = {}
for a in [[1, 2], (1, 2), range(2), (1 for b in "ab")] * 100: looped(a)
code = compile("for k, task in {}.items(): pass\nother = 1", "m", "exec")
def by_name(code, names):
    return [id(n) for n in sum((code.co_varnames, code.co_cellvars, code.co_names), ()) if n in names]
loops = [[id(looped.__code__), by_name(looped.__code__, ["x", "i", "y", "z", "n", "value", "cell"])],
    [id(code), by_name(code, ["k", "task"])]]
print(json.dumps({"loops": loops, "limits": [[id(o), id(c), *rest] for o, c, *rest in limits],
    "ids": {n: id(o) for n, o in held.items()}, "kept": id(kept), "element": id(kept[0]), "leaf": [id(t) for t in (int, str, float, bytes)],
    "other": [id(t) for t in (list, dict, tuple, object, Plain)], "count": sys.getrefcount(kept) - 1,
    "dicts": [{"id": id(d), "pairs": [[id(k), id(v)] for k, v in d.items()]} for d in (texts, numbers)],
    "sequences": [{"id": id(l), "items": [id(v) for v in l]} for l in sequences], "small": id(held),
    "bounds": [[id(o), n, most] for o, n, most in bounds]}), flush=True)
sys.stdin.read()
`

// said is what the program says.
type said struct {
	IDs           map[string]uint64
	Kept, Element uint64
	Leaf, Other   []uint64
	Count         int64
	Dicts         []struct {
		ID    uint64
		Pairs [][2]uint64 // of key and value, in their order
	}
	Sequences []struct {
		ID    uint64
		Items []uint64
	}
	Limits []saidLimit
	Loops  []saidLoops
	Bounds [][3]uint64 // address, number of elements and the most that there may be; 0: no bound
	Small  uint64      // a dictionary of few keys
}

// image is the memory of a process, read at each question.
type image struct{ *process.Process }

// Word implements Image.
func (i image) Word(addr uint64) uint64 { return wordOf(i, addr) }

// View implements Image.
func (i image) View(addr uint64, n int) []byte { return viewOf(i, addr, n) }

func wordOf(m process.Memory, addr uint64) uint64 {
	b := viewOf(m, addr, 8)
	if b == nil || addr&7 != 0 {
		return 0
	}
	return binary.LittleEndian.Uint64(b)
}

func viewOf(m process.Memory, addr uint64, n int) []byte {
	b := make([]byte, n)
	if _, err := m.ReadAt(b, addr); err != nil {
		return nil
	}
	return b
}

// start runs the program. It ends when the test does.
func start(t *testing.T, python string) (image, said) {
	t.Helper()
	cmd := exec.Command(python, "-c", strings.Replace(program, "LONG", strings.Repeat("self.count += 2 * self.warm; ", 40), 1))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	require.NoError(t, err)
	var s said
	require.NoError(t, json.Unmarshal(line, &s))
	p, err := process.Open(cmd.Process.Pid)
	require.NoError(t, err)
	return image{p}, s
}

// pythonOf is the interpreter of a release.
func pythonOf(t *testing.T, version string) string {
	t.Helper()
	if version == "3.14" || version == "3.15" {
		folder, err := exec.Command("../../testdata/debian-python.sh", version).Output()
		require.NoError(t, err, "testdata/debian-python.sh")
		return filepath.Join(strings.TrimSpace(string(folder)), "bin", "python"+version)
	}
	root := os.Getenv("PYENV_ROOT")
	if root == "" {
		home, err := os.UserHomeDir()
		require.NoError(t, err)
		root = filepath.Join(home, ".pyenv")
	}
	pythons, err := filepath.Glob(filepath.Join(root, "versions", version+".*", "bin", "python"+version))
	require.NoError(t, err)
	require.NotEmpty(t, pythons, "python %s must be installed with pyenv", version)
	return pythons[0]
}

// TestObjects: types, references and counts are those that each version of CPython says itself.
func TestObjects(t *testing.T) {
	for _, version := range []string{"3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14", "3.15"} {
		t.Run(version, func(t *testing.T) {
			img, s := start(t, pythonOf(t, version))
			h, err := FindHeap(img.Process)
			require.NoError(t, err)
			checkObjects(t, h, img, &s)
			checkBounds(t, h, img, &s)
			checkLimits(t, h, img, &s)
			checkLoops(t, h, img, &s)
		})
	}
}

func checkTypes(t *testing.T, h *Heap, img Image, s *said) {
	t.Helper()
	leaf := h.LeafTypes(img)
	require.Equal(t, s.Leaf, leaf[:len(s.Leaf)], "the most frequent first")
	for _, other := range s.Other {
		require.NotContains(t, leaf, other)
		require.NotNil(t, h.TypeAt(img, other))
	}
	require.Equal(t, "list", h.TypeOf(img, s.Kept).Name)
	count, ok := h.ReferenceCount(img, s.Kept)
	require.True(t, ok)
	require.Equal(t, s.Count, count)
	require.True(t, slices.ContainsFunc(h.Modules(img), func(m Module) bool { return m.Name == "__main__" }))
}

// checkReferences follows each of the objects to the list that all of them hold, over at most one object in between.
func checkReferences(t *testing.T, h *Heap, img Image, s *said) {
	t.Helper()
	targets := func(object uint64) (out []uint64) {
		for _, r := range h.References(img, nil, object, h.TypeOf(img, object)) {
			out = append(out, r.Target)
		}
		return out
	}
	require.Equal(t, []uint64{s.Element}, targets(s.Kept))
	for name, id := range s.IDs {
		if name == "list" || name == "set" {
			continue
		}
		found := targets(id)
		for _, between := range slices.Clone(found) {
			if typ := h.TypeOf(img, between); typ != nil && !typ.Is("type") {
				found = append(found, targets(between)...)
			}
		}
		for _, between := range slices.Clone(found) { // a closure's cell is in a tuple
			if typ := h.TypeOf(img, between); typ != nil && typ.Is("cell") {
				found = append(found, targets(between)...)
			}
		}
		require.Contains(t, found, s.Kept, name)
	}
}

// checkBounds reads how many elements containers with a bound have.
func checkBounds(t *testing.T, h *Heap, img Image, s *said) {
	t.Helper()
	require.Len(t, s.Bounds, 6)
	for _, b := range s.Bounds {
		length, most, ok := h.Bounded(img, b[0])
		if require.Equal(t, b[2] > 0, ok, "%v", b); ok {
			require.Equal(t, b, [3]uint64{b[0], length, most})
		}
	}
}

// saidLimit is a container as an attribute of an object, with its length and limit; 0: none is known.
type saidLimit struct {
	owner, container uint64
	name             string
	length, most     uint64
}

// UnmarshalJSON reads a list.
func (s *saidLimit) UnmarshalJSON(b []byte) error {
	return json.Unmarshal(b, &[]any{&s.owner, &s.container, &s.name, &s.length, &s.most})
}

// checkLimits reads the limits that the functions of a class or module keep containers within.
func checkLimits(t *testing.T, h *Heap, img Image, s *said) {
	t.Helper()
	require.Len(t, s.Limits, 31)
	limits := h.NewLimits(img)
	for _, l := range s.Limits {
		length, most, ok := limits.Find(l.owner, l.container, l.name)
		if require.Equal(t, l.most > 0, ok, "%s: %d", l.name, most); ok {
			require.Equal(t, []uint64{l.length, l.most}, []uint64{length, most}, l.name)
		}
	}
	_, _, ok := limits.Find(8, s.Kept, "kept")
	require.False(t, ok, "no object")
}

// saidLoops is a code object with the names of the variables that its loops assign to.
type saidLoops struct {
	code  uint64
	names []uint64
}

// UnmarshalJSON reads a list.
func (s *saidLoops) UnmarshalJSON(b []byte) error {
	return json.Unmarshal(b, &[]any{&s.code, &s.names})
}

// checkLoops reads which variables loops assign to: of a function that has run in its specialised forms, and of a module's code.
func checkLoops(t *testing.T, h *Heap, img Image, s *said) {
	t.Helper()
	require.Len(t, s.Loops, 2)
	for i, l := range s.Loops {
		locals, names := h.LoopVariables(img, Activation{Code: l.code})
		want := [2][]uint64{l.names, nil}
		if i == 1 {
			want = [2][]uint64{nil, l.names}
		}
		require.ElementsMatch(t, want[0], locals)
		require.ElementsMatch(t, want[1], names)
	}
}

// checkElements reads elements of lists, tuples and dictionaries one by one.
func checkElements(t *testing.T, h *Heap, img Image, s *said) {
	t.Helper()
	require.Len(t, s.Dicts, 2)
	for _, d := range s.Dicts {
		require.Len(t, d.Pairs, 500)
		positions := h.Positions(img, d.ID, 500)
		require.Len(t, positions, 500, "what was deleted has none")
		for _, pair := range d.Pairs {
			at, ok := positions[pair[0]]
			require.True(t, ok)
			key, value, ok := h.Element(img, d.ID, uint64(at))
			require.True(t, ok)
			require.Equal(t, pair, [2]uint64{key, value})
		}
		_, _, ok := h.Element(img, d.ID, 5000)
		require.False(t, ok)
		require.Nil(t, h.Positions(img, d.ID, 5000))
	}
	require.Len(t, s.Sequences, 2)
	for _, l := range s.Sequences {
		for i, want := range l.Items {
			_, value, ok := h.Element(img, l.ID, uint64(i))
			require.True(t, ok)
			require.Equal(t, want, value)
		}
		_, _, ok := h.Element(img, l.ID, uint64(len(l.Items)))
		require.False(t, ok)
		require.Nil(t, h.Positions(img, l.ID, 0))
	}
	require.Nil(t, h.Positions(img, s.Small, 256))
	_, _, ok := h.Element(img, s.Element, 0)
	require.False(t, ok, "an object without elements")
}
