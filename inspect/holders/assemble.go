// SPDX-License-Identifier: Apache-2.0

package holders

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gputrace/gputrace/cpython/pyobject"
	"github.com/gputrace/gputrace/event/allocator"
	"github.com/gputrace/gputrace/inspect"
	"github.com/gputrace/gputrace/inspect/holders/internal/memory"
	"github.com/gputrace/gputrace/inspect/holders/internal/objgraph"
	"github.com/gputrace/gputrace/inspect/holders/internal/torchlayout"
	"github.com/gputrace/gputrace/inspect/internal/present"
)

// candidate is a path to a block: to one of its targets, through one of its holders.
type candidate struct {
	target int
	holder *objgraph.Holder // nil: the target is a root, or nothing but its own path is known
	cost   int32
}

const (
	// maxTries bounds the paths of a block that are read again until one holds.
	maxTries = 32
	// maxHolders bounds the holders of a block that are read again.
	maxHolders = 4096
)

// assembly puts the report together.
type assembly struct {
	*reading
	live     *liveBlocks
	now      *objgraph.Recheck // nil when the process was stopped for the copy
	holders  [][]objgraph.Holder
	byBlock  [][]int // targets of each block
	confirms []time.Time
	native   []bool               // of each block: its tensors are held by C++ only
	chosen   []choice             // of each block
	targetOf map[uint32]int       // by goal
	keys     map[uint32]keyChoice // of goals that are keys of a dictionary
}

// assemble names the blocks.
func (r *reading) assemble(live *liveBlocks) error {
	a := &assembly{reading: r, live: live, confirms: make([]time.Time, len(live.blocks)), native: make([]bool, len(live.blocks)),
		chosen: make([]choice, len(live.blocks))}
	a.holders = r.graph.Holders()
	if !r.frozen && (r.torch.KnowsTensors() || r.knowsArrays() || r.knowsHandles()) {
		done, err := a.readAgain()
		if err != nil {
			return err
		}
		defer done()
	}
	a.keyPath = a.pathOfKey
	a.assign()
	for i := range live.blocks {
		if a.ctx.Err() != nil {
			return context.Cause(a.ctx)
		}
		a.name(i, 0)
	}
	if a.now != nil {
		if err := a.proveAll(); err != nil {
			return err
		}
		if err := a.places(); err != nil {
			return err
		}
	}
	a.leftover()
	a.finish()
	return nil
}

// againShare is the part of what is held at once that a second reading holds: block by block, it goes along the
// paths that are already known.
const againShare = 4

// readAgain prepares a second reading.
func (a *assembly) readAgain() (done func(), err error) {
	maps, err := a.p.Maps()
	if err != nil {
		return nil, err
	}
	im, err := memory.NewRing(a.ctx, a.p, present.Regions(maps), a.held()/againShare)
	if err != nil {
		return nil, err
	}
	im.OnRenew(a.mapped)
	a.now = a.graph.NewRecheck(a.ctx, a.p, im)
	a.moves = a.now.Moved
	a.report.Stats.BytesRead += a.now.BytesRead()
	return func() {
		a.report.Stats.BytesRead += im.BytesRead()
		im.Close()
	}, nil
}

// mapped is what of the process may be read now, present or not.
func (a *assembly) mapped() (regions []memory.Region, runs []memory.Run, ok bool) {
	maps, err := a.p.Maps()
	return present.Regions(maps), nil, err == nil
}

// uses reports whether a tensor still has a storage whose memory is the block's, and the same Python object, or whether an array is
// still in the block.
func (r *reading) uses(t *torchlayout.Reader, g *target, b *Block) bool {
	from, size := b.span()
	if g.handle {
		return r.handles.InBlock(t.Image(), g.object, from, size)
	}
	if g.array {
		return r.arrays.InBlock(t.Image(), g.object, from, size)
	}
	return t.InBlock(g.impl, g.storage, g.object, from, size)
}

// assign finds the targets of each block.
func (a *assembly) assign() {
	a.byBlock = make([][]int, len(a.live.blocks))
	a.targetOf, a.keys = map[uint32]int{}, map[uint32]keyChoice{}
	for k := range a.targets {
		a.targetOf[a.targets[k].goal] = k
		if i, ok := a.live.around(a.targets[k].data); ok {
			a.byBlock[i] = append(a.byBlock[i], k)
		}
	}
}

// candidates lists the paths to a block, the best first.
func (a *assembly) candidates(block int) []candidate {
	var out []candidate
	all := a.byBlock[block]
	whole := int64(0)
	if len(all) > 1 {
		for _, k := range all[:min(len(all), maxHolders)] {
			whole = max(whole, a.elements(k))
		}
	}
	for _, k := range all {
		begin := len(out)
		if out = a.candidatesOf(out, k); whole > 0 && len(out) > begin && a.elements(k) < whole {
			for i := range out[begin:] {
				out[begin+i].cost += costView
			}
		}
	}
	slices.SortStableFunc(out, compareCandidates)
	return out
}

// costView is the cost of a tensor that shows less of a block than another one does: the other one is more likely what the program keeps
// the block for.
const costView = 2

// elements returns the number of elements of a target; 0: not known.
func (a *assembly) elements(k int) int64 {
	if a.targets[k].impl == 0 || a.torch == nil {
		return 0
	}
	g, ok := a.torch.Geometry(a.targets[k].impl)
	if !ok {
		return 0
	}
	n := int64(1)
	for _, s := range g.Sizes {
		n *= s
	}
	return n
}

// compareCandidates puts the best path first. A value on a running frame's stack that may be dead is worse than anything
// certain, garbage too.
func compareCandidates(x, y candidate) int {
	doubt := func(c *candidate) int {
		if c.holder != nil && c.holder.Doubtful && c.holder.Kind == pyobject.RefTemporary {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(doubt(&x), doubt(&y)), cmp.Compare(x.cost, y.cost))
}

// candidatesOf appends the paths to a target.
func (a *assembly) candidatesOf(out []candidate, k int) []candidate {
	w, g := a.graph, a.targets[k].goal
	for i := range a.holders[g] {
		h := &a.holders[g][i]
		if w.Reached(h.From) && len(out) < maxHolders {
			out = append(out, candidate{k, h, w.HolderCost(h)})
		}
	}
	if _, below := w.Parent(g); w.Reached(g) && !below {
		out = append(out, candidate{target: k, cost: w.Cost(g)})
	}
	return out
}

// pathOfKey is the path of a dictionary's key: for a tensor, that which its own block is called by.
func (a *assembly) pathOfKey(key uint64, depth int) Path {
	w := a.graph
	n, ok := w.Number(key)
	if !ok {
		return nil
	}
	if k, ok := a.targetOf[n]; ok {
		if c := a.keyCandidate(n, k); c != nil {
			return a.pathOf(c, depth)
		}
		return nil
	}
	if kind, _ := w.Link(n); !w.Reached(n) || kind == pyobject.RefKeyItself || a.now != nil && !a.now.Path(n) {
		return nil
	}
	return a.path(n, depth)
}

// keyCandidate is the best path to a tensor that holds and does not lead through the dictionary whose key it is.
func (a *assembly) keyCandidate(goal uint32, target int) *candidate {
	k := a.keys[goal]
	if k.known {
		return k.best
	}
	k.known = true
	all := a.candidatesOf(nil, target)
	slices.SortStableFunc(all, compareCandidates)
	for ; k.best == nil && k.next < min(len(all), maxTries); k.next++ {
		c := &all[k.next]
		if (c.holder == nil || c.holder.Kind != pyobject.RefKeyItself) && a.leads(c) {
			k.best = c
		}
	}
	a.keys[goal] = k
	return k.best
}

// refute takes the path of a key for wrong: the next one will be looked for.
func (a *assembly) refute(key uint64) {
	n, _ := a.graph.Number(key)
	if _, ok := a.targetOf[n]; ok {
		a.keys[n] = keyChoice{next: a.keys[n].next}
	}
}

// keyChoice is the path that a key is called by.
type keyChoice struct {
	best  *candidate // nil: none holds
	next  int        // among the candidates, behind best
	known bool       // else it is still to be looked for
}

// choice is the path that a block is called by, and further ones that are to be shown.
type choice struct {
	best   *candidate // nil: none
	next   int        // among the candidates, behind best
	others []*candidate
}

// name finds the path of a block, its tensors and how many hold them. The candidates before from did not stand.
func (a *assembly) name(block, from int) {
	b := &a.live.blocks[block]
	b.Path, b.Others, b.Tensors, b.Confirmed, b.Category, b.Why = nil, nil, nil, false, CategoryUnknown, ""
	a.chosen[block] = choice{}
	all := a.candidates(block)
	best := -1
	for i := from; i < min(len(all), maxTries); i++ {
		if a.holds(&all[i], b) {
			best = i
			break
		}
	}
	a.addTensors(b, block, all, best)
	if best < 0 {
		a.why(b, block, len(all) > 0)
		return
	}
	b.Path = withoutHandle(a.pathOf(&all[best], 0), b.Allocator)
	if a.unread && b.Path[0].Kind == StepNative { // a variable of Python may well lead to it
		b.Path, b.Why = nil, a.report.NoPython
		return
	}
	b.Confirmed = true
	a.confirms[block] = time.Now()
	b.Category = a.category(b)
	c := choice{best: &all[best], next: best + 1}
	for i := range all {
		if len(c.others) >= a.options.Others {
			break
		}
		if i != best && i < best+maxTries && a.holds(&all[i], b) {
			c.others = append(c.others, &all[i])
			b.Others = append(b.Others, a.pathOf(&all[i], 0))
		}
	}
	a.chosen[block] = c
}

// proofRounds is how often paths are looked for that stand.
const proofRounds = 4

// proveAll proves the paths of all blocks. A block whose path does not stand is called by its next one, or unknown.
func (a *assembly) proveAll() error {
	var claims, others []claim
	for i := range a.chosen {
		claims = a.claim(claims, i)
	}
	claims, alike := a.sample(claims)
	shapes := map[string]tally{}
	end := a.proofEnd()
	for n := 0; len(claims) > 0; n++ {
		inTurn(claims)
		failed, late, err := a.prove(claims, end)
		if err != nil {
			return err
		}
		count(shapes, claims, failed, late)
		claims = a.rename(failed, n+1 == proofRounds || len(late) > 0)
		for _, c := range failed {
			if !shapes[c.shape].trusted() {
				claims = append(claims, alike[c.shape]...)
				delete(alike, c.shape)
			}
		}
		if len(late) > 0 {
			a.withoutProof(append(late, claims...), alike, shapes)
			alike = nil
			break
		}
	}
	for _, all := range alike {
		a.byShape(all)
	}
	for i := range a.chosen {
		b, paths := &a.live.blocks[i], a.live.blocks[i].Others
		b.Others = nil
		for k, c := range a.chosen[i].others {
			others = append(others, claim{block: i, chosen: c, keys: keysOf(nil, paths[k]), path: paths[k]})
		}
	}
	return a.proveOthers(others, end)
}

// proofEnd is when no more is proved. What is left to be done behind that has a part of the time.
func (a *assembly) proofEnd() time.Time {
	end := time.Now().Add(proofTime)
	if limit, ok := a.ctx.Deadline(); ok {
		if soon := time.Now().Add(time.Until(limit) * 2 / 3); soon.Before(end) {
			return soon
		}
	}
	return end
}

// withoutProof is for the paths of which there was no time to prove them: of a shape that is trusted they stay, others are unknown.
func (a *assembly) withoutProof(late []claim, alike map[string][]claim, shapes map[string]tally) {
	for _, all := range alike {
		late = append(late, all...)
	}
	for _, c := range a.trust(late, shapes) {
		a.name(c.block, maxTries)
		b := &a.live.blocks[c.block]
		b.Category, b.Why = CategoryChanging, "there was no time to prove its holder"
	}
}

// trust takes the paths of trusted shapes for proved, and returns the others.
func (a *assembly) trust(late []claim, shapes map[string]tally) (others []claim) {
	for i, c := range late {
		if shapes[c.shape].trusted() {
			a.byShape(late[i : i+1])
		} else {
			others = append(others, c)
		}
	}
	return others
}

// byShape records that paths are taken for proved because others of their shape are.
func (a *assembly) byShape(claims []claim) {
	for i := range claims {
		a.live.blocks[claims[i].block].ByShape = true
	}
}

const (
	// proofTime is how long paths are proved: a few seconds of a machine that has other things to do.
	proofTime = 5 * time.Second
	// maxAlike is how many paths of one shape are proved, each in bursts. Of a leak there can be hundred thousands, which are links of one
	// list: the others were read twice, as all were, and are taken for proved when those are.
	maxAlike = 128
	// trustFrom is how many of a shape must be proved for that, where there is no time for more, and trustShare which part of them may
	// fail: what a program drops while it is read.
	trustFrom  = 8
	trustShare = 16
)

// tally is how many paths of one shape were tried, and of how many the proof failed.
type tally struct{ tried, failed int }

// trusted reports whether paths that were read twice may be taken for proved, because those of the same shape were.
func (t tally) trusted() bool { return t.tried-t.failed >= trustFrom && t.failed*trustShare <= t.tried }

// count adds up what became of claims.
func count(shapes map[string]tally, claims, failed, late []claim) {
	add := func(all []claim, tried, failed int) {
		for i := range all {
			t := shapes[all[i].shape]
			shapes[all[i].shape] = tally{t.tried + tried, t.failed + failed}
		}
	}
	add(claims, 1, 0)
	add(late, -1, 0)
	add(failed, 0, 1)
}

// inTurn puts some claims of each shape first, then some more of each: where the time ends, something is known of all.
func inTurn(claims []claim) {
	seen := map[string]int{}
	turns := make(map[int]int, len(claims)) // by block
	for i := range claims {
		c := &claims[i]
		turns[c.block] = seen[c.shape] / proofBlocks
		seen[c.shape]++
	}
	slices.SortStableFunc(claims, func(x, y claim) int { return cmp.Compare(turns[x.block], turns[y.block]) })
}

// sample leaves of the paths of each shape those that are proved, evenly chosen; alike are the others, to be proved when one of these
// does not stand.
func (a *assembly) sample(all []claim) (claims []claim, alike map[string][]claim) {
	shapes := map[string]int{}
	for i := range all {
		shapes[all[i].shape]++
	}
	alike = map[string][]claim{}
	seen := map[string]int{}
	for _, c := range all {
		n, of := seen[c.shape], shapes[c.shape]
		seen[c.shape]++
		if of <= maxAlike || n*maxAlike/of != (n+1)*maxAlike/of {
			claims = append(claims, c)
			continue
		}
		alike[c.shape] = append(alike[c.shape], c)
	}
	return claims, alike
}

// rename names blocks anew whose paths did not stand: by other paths for the keys in them, else by other paths of their own.
// Those for which this was the last time are unknown.
func (a *assembly) rename(failed []claim, last bool) (claims []claim) {
	refuted := map[uint64]bool{}
	for _, c := range failed {
		for _, key := range c.keys {
			if !refuted[key] {
				refuted[key] = true
				a.refute(key)
			}
		}
	}
	for _, c := range failed {
		from := a.chosen[c.block].next
		switch {
		case last:
			from = maxTries
		case len(c.keys) > 0:
			from--
		}
		a.name(c.block, from)
		claims = a.claim(claims, c.block)
	}
	return claims
}

// claim appends what is to be proved of a block.
func (a *assembly) claim(claims []claim, block int) []claim {
	if c := a.chosen[block].best; c != nil {
		p := a.live.blocks[block].Path
		claims = append(claims, claim{block: block, chosen: c, keys: keysOf(nil, p), shape: p.shape()})
	}
	return claims
}

// proveOthers leaves the further paths that stand.
func (a *assembly) proveOthers(claims []claim, end time.Time) error {
	if len(claims) == 0 {
		return nil
	}
	failed, late, err := a.prove(claims, end)
	if err != nil {
		return err
	}
	gone := map[*candidate]bool{}
	for _, c := range append(failed, late...) {
		gone[c.chosen] = true
	}
	for _, c := range claims {
		if !gone[c.chosen] {
			b := &a.live.blocks[c.block]
			b.Others = append(b.Others, c.path)
		}
	}
	return nil
}

// holds reads every link of a path again, and that it leads to the block.
func (a *assembly) holds(c *candidate, b *Block) bool {
	if a.now == nil {
		return true
	}
	return a.uses(a.now.Reader(), &a.targets[c.target], b) && a.leads(c)
}

// leads reads every link of a path again.
func (a *assembly) leads(c *candidate) bool { return a.now == nil || a.leadsIn(a.now, c) }

// leadsIn follows every link of a path in what was read at some other moment than the copy.
func (a *assembly) leadsIn(now *objgraph.Recheck, c *candidate) bool {
	if c.holder == nil {
		return now.Path(a.targets[c.target].goal)
	}
	h := c.holder
	return now.Link(a.graph.Addr(h.From), a.graph.Addr(h.Goal), h.Aux, h.Kind) && now.Path(h.From)
}

// heldBy reads the last link again: from the holder to the target.
func (a *assembly) heldBy(h *objgraph.Holder) bool {
	return a.now == nil || a.now.Link(a.graph.Addr(h.From), a.graph.Addr(h.Goal), h.Aux, h.Kind)
}

// pathOf is a path with all its steps. depth counts paths of keys within paths.
func (a *assembly) pathOf(c *candidate, depth int) Path {
	g := a.targets[c.target].goal
	if c.holder == nil {
		return a.path(g, depth)
	}
	p := a.path(c.holder.From, depth)
	return append(p, a.step(c.holder.Kind, c.holder.Aux, a.graph.Addr(c.holder.From), a.graph.Addr(g), depth))
}

// addTensors describes the tensors of a block, that of its path first, and counts their holders.
func (a *assembly) addTensors(b *Block, block int, all []candidate, best int) {
	order := slices.Clone(a.byBlock[block])
	if best >= 0 {
		slices.SortStableFunc(order, func(x, y int) int {
			return cmp.Compare(a.rank(x, &all[best]), a.rank(y, &all[best]))
		})
	}
	counts := counted{}
	for _, k := range order {
		g := &a.targets[k]
		if a.now != nil && !a.uses(a.now.Reader(), g, b) {
			continue
		}
		found := a.confirmedHolders(g)
		if g.array {
			counts.addObject(a.torchNow(), g.object, found)
			b.Tensors = a.addArray(b.Tensors, b, g, found)
			continue
		}
		counts.add(a.torchNow(), g, found, len(b.Tensors))
		if g.impl != 0 {
			b.Tensors = append(b.Tensors, a.describe(a.torchNow(), g, found))
		}
	}
	b.Holders, b.Complete = counts.holders, counts.complete()
	if b.Complete == No {
		b.Missing = counts.missing.Native + counts.missing.Python
	}
	a.native[block] = counts.onlyNative() && !a.younger(block)
}

// younger reports whether a tensor of a block has a Python object that the copy does not know.
func (a *assembly) younger(block int) bool {
	return a.now != nil && slices.ContainsFunc(a.byBlock[block], func(k int) bool {
		g := &a.targets[k]
		return g.impl != 0 && g.object == 0 && a.now.Reader().Object(g.impl) != 0
	})
}

func (a *assembly) rank(k int, best *candidate) int {
	switch {
	case k == best.target:
		return 0
	case a.targets[k].impl == 0: // the storage, behind its tensors
		return 2
	}
	return 1
}

// torchNow reads from the process as it is now or, if it was stopped, from the copy.
func (a *assembly) torchNow() *torchlayout.Reader {
	if a.now != nil {
		return a.now.Reader()
	}
	return a.torch
}

// confirmedHolders are the references to a target that still hold.
func (a *assembly) confirmedHolders(g *target) []objgraph.Holder {
	found := a.holders[g.goal]
	if a.now == nil || len(found) > maxHolders {
		return found
	}
	var out []objgraph.Holder
	for i := range found {
		if a.heldBy(&found[i]) {
			out = append(out, found[i])
		}
	}
	return out
}

// why says why a block has no path.
func (a *assembly) why(b *Block, block int, known bool) {
	switch {
	case b.State == inspect.StatePending:
		b.Category = CategoryPending
	case b.Allocator != allocator.Torch:
		a.whyArray(b, block, known)
	case !a.torch.KnowsTensors():
		b.Why = "the layout of PyTorch's tensors was not found"
	case a.heap == nil && len(a.byBlock[block]) > 0:
		b.Why = a.report.NoPython
	case !known && a.native[block] && (a.now == nil || a.seen(b)): // the copy knows the Python object of a tensor that is older
		b.Category = CategoryNative
	case a.younger(block):
		b.Category, b.Why = CategoryChanging, "allocated while it was read"
	case known:
		b.Category, b.Why = CategoryChanging, "its holder changed while it was read"
	case len(a.byBlock[block]) > 0:
		b.Why = "no path leads to its tensor"
	case a.now != nil && !a.seen(b):
		b.Category, b.Why = CategoryChanging, "allocated while it was read"
	case b.Pool.Private():
		b.Category = CategoryPool
	default:
		b.Why = "no tensor uses it"
	}
}

// seen reports whether a block was there when the memory was copied.
func (a *assembly) seen(b *Block) bool {
	i, ok := a.first.at(b.from())
	return ok && a.first.blocks[i].Size == b.Size
}

// leftover looks for what of C++ holds the blocks that have no path.
func (a *assembly) leftover() {
	lost := map[uint64][]int{}
	var bare []*Block
	for i := range a.live.blocks {
		b := &a.live.blocks[i]
		// Where Python held a block a moment ago, a pointer to it in C++ may be as old.
		known := len(b.Path) > 0 || b.State == inspect.StatePending || b.Category == CategoryChanging
		if known || b.Allocator != allocator.Torch || a.now != nil && !a.seen(b) || a.younger(i) {
			continue
		}
		if len(a.byBlock[i]) == 0 {
			bare = append(bare, b)
		}
		for _, k := range a.byBlock[i] {
			g := &a.targets[k]
			if a.now != nil && !a.uses(a.now.Reader(), g, b) || g.impl == 0 && len(b.Tensors) > 0 {
				continue
			}
			lost[a.graph.Addr(g.goal)] = append(lost[a.graph.Addr(g.goal)], i)
			if g.impl != 0 && g.object != 0 {
				lost[g.impl] = append(lost[g.impl], i)
			}
		}
	}
	if len(bare)+len(lost) == 0 {
		return
	}
	environ, _ := a.p.Environ()
	owners := torchlayout.NewOwners(a.torch, environ)
	a.workspaces(owners, bare)
	if len(lost) == 0 || a.heap == nil { // C++ alone does not hold what Python may
		return
	}
	addrs := slices.Sorted(maps.Keys(lost))
	classes := owners.Objects(addrs)
	for _, addr := range addrs {
		a.heldByClass(lost[addr], classes[addr])
	}
}

// workspaces names blocks without a tensor by what of C++ owns their memory.
func (a *assembly) workspaces(owners *torchlayout.Owners, bare []*Block) {
	if len(bare) == 0 {
		return
	}
	requested := map[uint64]uint64{}
	for _, b := range bare {
		requested[b.from()] = b.Requested
	}
	classes := owners.Workspaces(requested)
	for _, b := range bare {
		a.bareBlock(b, classes[b.from()])
	}
}

// bareBlock names a block without a tensor after the class of what owns its memory. Whether Python holds a storage is only
// known where tensors are.
func (a *assembly) bareBlock(b *Block, class string) {
	switch {
	case class != storageClass:
		a.ownedBy(b, class)
	case !a.torch.KnowsTensors():
	case a.now == nil && a.heap != nil:
		a.ownedBy(b, class)
	case a.now != nil: // the copy has all storages that are older
		b.Category, b.Why = CategoryChanging, "allocated while it was read"
	}
}

// storageClass is the class of what a tensor keeps its elements in.
const storageClass = "c10::StorageImpl"

// ownedBy names a block after the class of what owns its memory. A storage without a tensor is held by C++, as by
// autograd for a moment. Other objects of autograd own no memory: what looks so is left of a storage that was freed
// there.
func (a *assembly) ownedBy(b *Block, class string) {
	const autograd = "torch::autograd::"
	if class == "" || strings.HasPrefix(class, autograd) {
		return
	}
	b.Class = cutText(class)
	switch {
	case !a.stillBare(b):
	case class == storageClass:
		b.Category, b.Why = CategoryNative, ""
	default:
		b.Category, b.Why = CategoryWorkspace, ""
	}
}

// stillBare: nothing of it can have changed, as far as it can be known: the block is the same as when the copy was made.
func (a *assembly) stillBare(b *Block) bool { return a.now == nil || a.seen(b) }

// heldByClass names blocks by what holds their tensor.
func (a *assembly) heldByClass(blocks []int, class string) {
	if class == "" {
		return
	}
	for _, i := range blocks {
		b := &a.live.blocks[i]
		if b.Class == "" {
			b.Class, b.Category, b.Why = cutText(class), CategoryNative, ""
		}
	}
}

// finish adds up.
func (a *assembly) finish() {
	end := time.Now()
	for i := range a.live.blocks {
		if b := &a.live.blocks[i]; b.Confirmed && a.now != nil {
			b.Age = end.Sub(a.confirms[i])
		}
	}
	report := a.report
	report.Blocks, report.Devices, report.Time = a.live.blocks, a.live.devices, a.live.time
	slices.SortStableFunc(report.Blocks, func(x, y Block) int {
		return cmp.Or(cmp.Compare(x.Allocator, y.Allocator), cmp.Compare(x.Device, y.Device), cmp.Compare(x.Addr, y.Addr))
	})
	sums := [categories]Total{}
	for i := range report.Blocks {
		b := &report.Blocks[i]
		sums[b.Category].Blocks++
		sums[b.Category].Bytes += b.Size
	}
	for _, d := range report.Devices {
		if c := d.Changing; c != nil {
			sums[CategoryChanging].Blocks += int(c.BlocksLow)
			sums[CategoryChanging].Bytes += c.BytesLow
		}
	}
	for _, c := range Categories() {
		report.Totals = append(report.Totals, Total{c, sums[c].Blocks, sums[c].Bytes})
	}
	if a.now != nil {
		report.Stats.Confirm = max(a.now.Last().Sub(a.live.read), 0)
	}
	report.Stats.BytesRead += a.im.BytesRead()
	report.Stats.BytesHeld = a.im.BytesHeld()
}
