// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"time"
)

// The questions, as in ring.h.
const (
	askMemory  = 1
	askRegions = 2
	askPresent = 3
	askImages  = 4
	askSymbol  = 5
	askPages   = 6
	askSizes   = 7
)

const (
	// answerTime is how long a process may take to answer. One that is stopped does not.
	answerTime = 2 * time.Second
	// eagerLooks are made for an answer without a pause: most take microseconds.
	eagerLooks = 200
	lookPause  = 50 * time.Microsecond
	maxRegions = 1 << 18
	maxImages  = 1 << 14
)

// ErrNoAnswer is of a process that does not answer: it has ended or become another program, or it is stopped.
var ErrNoAnswer = errors.New("the process does not answer")

// Region is a range of addresses that the process has mapped (mach/vm_region.h, vm_region_submap_info_64).
type Region struct {
	Start, End uint64
	Protection uint32 // ProtRead ...
	Tag        uint32 // VM_MEMORY_*
	Share      uint32 // SM_*
	Other      bool   // it is a map of its own, or of a file
}

// Bits of Region.Protection (mach/vm_prot.h).
const (
	ProtRead  = 1
	ProtWrite = 2
	ProtExec  = 4
)

// Image is a program or library that the process has loaded.
type Image struct {
	Header, Slide uint64 // addresses of its Mach-O header, and how far it lies from where the header says
	Path          uint64 // address of its path
}

// Asker asks a process for its memory, which the shim in it reads. It implements process.Memory. After the first question that is not
// answered there is no other: what has ended is not waited for again. Safe for concurrent use.
type Asker struct {
	mu       sync.Mutex
	ctx      context.Context
	file     File
	capacity uint64
	last     uint64 // number of the last question
	err      error  // sticky
}

// Asker makes one, which asks until ctx is done.
func (r *Reader) Asker(ctx context.Context) (*Asker, error) {
	last, err := r.word(offAsked)
	if err != nil {
		return nil, err
	}
	return &Asker{ctx: ctx, file: r.file, capacity: r.capacity, last: last}, nil
}

// ask asks a question, and reads its answer into b. It returns how many bytes the answer has.
func (a *Asker) ask(b []byte, kind, addr, n uint64, name string) (int, error) {
	got, _, err := a.askWith(nil, b, kind, addr, n, name)
	return got, err
}

// askWith asks a question to which something belongs that lies where the answer will. took is how long the answer took to make.
func (a *Asker) askWith(with, b []byte, kind, addr, n uint64, name string) (got int, took time.Duration, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err != nil {
		return 0, 0, a.err
	}
	if _, a.err = a.file.WriteAt(with, int64(headerBytes+a.capacity)); a.err == nil {
		got, took, a.err = a.exchange(b, kind, addr, n, name)
	}
	if a.err != nil {
		a.err = fmt.Errorf("ask the process for its memory: %w", a.err)
	}
	return got, took, a.err
}

func (a *Asker) exchange(b []byte, kind, addr, n uint64, name string) (int, time.Duration, error) {
	question := make([]byte, offName-offKind+nameBytes)
	le := binary.LittleEndian
	le.PutUint64(question, kind)
	le.PutUint64(question[8:], addr)
	le.PutUint64(question[16:], n)
	copy(question[offName-offKind:len(question)-1], name)
	if _, err := a.file.WriteAt(question, int64(offKind)); err != nil {
		return 0, 0, err
	}
	a.last++
	if _, err := a.file.WriteAt(le.AppendUint64(nil, a.last), int64(offAsked)); err != nil {
		return 0, 0, err
	}
	if err := a.wait(); err != nil {
		return 0, 0, err
	}
	var w [16]byte
	if _, err := a.file.ReadAt(w[:], int64(offGot)); err != nil {
		return 0, 0, err
	}
	got := le.Uint64(w[:])
	if got > uint64(len(b)) {
		return 0, 0, fmt.Errorf("an answer of %d bytes, of at most %d", got, len(b))
	}
	_, err := a.file.ReadAt(b[:got], int64(headerBytes+a.capacity))
	return int(got), time.Duration(min(le.Uint64(w[8:]), uint64(answerTime))), err
}

// wait waits for the answer.
func (a *Asker) wait() error {
	end := time.Now().Add(answerTime)
	var w [8]byte
	for n := 0; ; n++ {
		if _, err := a.file.ReadAt(w[:], int64(offAnswered)); err != nil {
			return err
		}
		switch {
		case binary.LittleEndian.Uint64(w[:]) == a.last:
			return nil
		case a.ctx.Err() != nil:
			return context.Cause(a.ctx)
		case n < eagerLooks:
			runtime.Gosched()
		case time.Now().After(end):
			return ErrNoAnswer
		default:
			time.Sleep(lookPause)
		}
	}
}

// ReadAt implements process.Memory.
func (a *Asker) ReadAt(b []byte, addr uint64) (int, error) {
	for done := 0; done < len(b); {
		n := min(len(b)-done, answerBytes)
		got, err := a.ask(b[done:done+n], askMemory, addr+uint64(done), uint64(n), "")
		done += got
		if err != nil {
			return done, err
		}
		if got < n {
			return done, io.ErrUnexpectedEOF
		}
	}
	return len(b), nil
}

// ReadPages reads pages of 4,096 bytes into b, one after the other, and says which of them could be read, and how long the process took
// to copy them; of more than fit one answer, how long it all took.
func (a *Asker) ReadPages(addrs []uint64, b []byte) (there []bool, took time.Duration, err error) {
	for begun, first := time.Now(), true; len(addrs) > 0; first = false {
		n := min(len(addrs), maxPages)
		var with []byte
		for _, addr := range addrs[:n] {
			with = binary.LittleEndian.AppendUint64(with, addr)
		}
		answer := make([]byte, n*(pageBytes+1))
		got, copied, err := a.askWith(with, answer, askPages, 0, uint64(n), "")
		if err != nil || got != len(answer) {
			return nil, 0, errors.Join(err, fmt.Errorf("%d bytes for %d pages", got, n))
		}
		copy(b, answer[:n*pageBytes])
		for _, ok := range answer[n*pageBytes:] {
			there = append(there, ok != 0)
		}
		if took = copied; !first {
			took = time.Since(begun)
		}
		addrs, b = addrs[n:], b[n*pageBytes:]
	}
	return there, took, nil
}

// Sizes says what malloc gave objects, each by its address and where its memory would begin. An answer is the word at the first, and how
// many bytes were asked for at the second, at least; 0: no memory of malloc's begins there, or it is not known.
func (a *Asker) Sizes(places [][2]uint64) (answers [][2]uint64, err error) {
	u64 := binary.LittleEndian.Uint64
	for len(places) > 0 {
		n := min(len(places), maxSizes)
		var with []byte
		for _, p := range places[:n] {
			with = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(with, p[0]), p[1])
		}
		got, _, err := a.askWith(with, with, askSizes, 0, uint64(n), "")
		if err != nil || got != len(with) {
			return nil, errors.Join(err, fmt.Errorf("%d bytes for %d sizes", got, n))
		}
		for b := with; len(b) > 0; b = b[sizeBytes:] {
			answers = append(answers, [2]uint64{u64(b), u64(b[8:])})
		}
		places = places[n:]
	}
	return answers, nil
}

// Regions lists what is mapped, by address.
func (a *Asker) Regions() ([]Region, error) {
	var out []Region
	b := make([]byte, answerBytes)
	le := binary.LittleEndian
	for at := uint64(0); ; {
		got, err := a.ask(b, askRegions, at, 0, "")
		if err != nil {
			return nil, err
		}
		for i := 0; i+regionBytes <= got; i += regionBytes {
			r := Region{le.Uint64(b[i:]), le.Uint64(b[i+8:]), le.Uint32(b[i+16:]), le.Uint32(b[i+20:]), le.Uint32(b[i+24:]), b[i+28] != 0}
			if r.Start < at || r.End <= r.Start || len(out) == maxRegions {
				return nil, fmt.Errorf("region %d is from %#x to %#x", len(out), r.Start, r.End)
			}
			out, at = append(out, r), r.End
		}
		if got < answerBytes/regionBytes*regionBytes {
			return out, nil
		}
	}
}

// Present says of each page that a range has a part of whether it is there, and how large a page is. There may be
// fewer than were asked for.
func (a *Asker) Present(start, end uint64) (pages []byte, size uint64, err error) {
	b := make([]byte, answerBytes)
	got, err := a.ask(b, askPresent, start, end-start, "")
	if err != nil || got < 8 {
		return nil, 0, err
	}
	return b[8:got], binary.LittleEndian.Uint64(b), nil
}

// Images lists what the process has loaded.
func (a *Asker) Images() ([]Image, error) {
	var out []Image
	b := make([]byte, answerBytes)
	u64 := binary.LittleEndian.Uint64
	got, err := a.ask(b, askImages, 0, 0, "")
	for i := 0; i+imageBytes <= got && len(out) < maxImages; i += imageBytes {
		out = append(out, Image{u64(b[i:]), u64(b[i+8:]), u64(b[i+16:])})
	}
	return out, err
}

// Symbol is the address of a name that a program or library of the process exports; 0: none does.
func (a *Asker) Symbol(name string) (uint64, error) {
	var b [8]byte
	_, err := a.ask(b[:], askSymbol, 0, 0, name)
	return binary.LittleEndian.Uint64(b[:]), err
}
