// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package measure

import (
	"errors"
	"io"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/tracer"
)

// live traces a job in this process with the code that gputrace runs: the tracer, and the heap fed by it.
type live struct {
	tracer *tracer.Tracer
	target *tracer.Target
	heap   *heap.Heap
	done   chan error
}

// load is what a trace had to do.
type load struct {
	hits, lost     uint64
	stacks         uint64                       // allocations that have one
	ends           map[event.StackStatus]uint64 // stacks by how they end
	native, python float64                      // mean frames of a stack
	unique         int                          // different stacks
}

func startLive(j *job, e *environment, freeStacks bool) (*live, error) {
	t := tracer.Open(&tracer.Options{CacheDir: e.cache, FreeStacks: freeStacks})
	target, err := t.Add(j.target)
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	l := &live{tracer: t, target: target, heap: heap.New(), done: make(chan error, 1)}
	go func() { l.done <- l.drain() }()
	return l, nil
}

func (l *live) drain() error {
	buf := make([]event.Event, 0, 4096)
	for {
		var err error
		buf, err = l.tracer.Read(buf[:0])
		for i := range buf {
			l.heap.Apply(&buf[i])
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// stop detaches and says what the trace did.
func (l *live) stop() (load, error) {
	l.tracer.Stop()
	err := <-l.done
	out := l.load()
	return out, errors.Join(err, l.tracer.Close())
}

func (l *live) load() load {
	s := l.heap.Snapshot()
	out := load{hits: s.Events, lost: l.tracer.Lost(), ends: map[event.StackStatus]uint64{}}
	for i := range s.Sites {
		site := &s.Sites[i]
		stack := l.target.Stack(site.Stack)
		if stack == nil || site.Layer != event.LayerAllocator {
			continue
		}
		out.unique++
		out.stacks += site.Alloc.Objects
		out.ends[stack.Status] += site.Alloc.Objects
		n := float64(site.Alloc.Objects)
		for k := range stack.Frames {
			if stack.Frames[k].Kind == event.FramePython {
				out.python += n
			} else {
				out.native += n
			}
		}
	}
	if out.stacks > 0 {
		out.native /= float64(out.stacks)
		out.python /= float64(out.stacks)
	}
	return out
}
