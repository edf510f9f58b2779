// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package stop stops a process for a bounded time, as a debugger does.
package stop

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/process"
)

// A process is stopped as a debugger does it (ptrace(2), PTRACE_SEIZE and PTRACE_INTERRUPT): no signal is sent, its parent
// is not notified, and the kernel lets it run on by itself when the thread that stopped it ends, however it ends. So a stop
// cannot outlive us: kill -9 of us is the same as letting go.
//
// A stop belongs to the thread that made it: one goroutine, locked to its thread, makes it and ends it.

// ErrRefused: the process may not be stopped.
var ErrRefused = errors.New("not stopped")

// Stop is a process that stands still.
type Stop struct {
	wake     int           // an eventfd, written to end it
	done     chan struct{} // closed when it has ended
	start    time.Time     // of the first thread's stop
	ended    time.Time     // of the last thread's, once done is closed
	deadline time.Time
	timedOut bool // it was ended because its time was over
	threads  []stopped
}

// stopped is a thread that stands still, and what it was stopped by.
type stopped struct {
	tid    int
	status unix.WaitStatus
}

const (
	maxStopped = 1 << 16 // threads
	stopPoll   = 200 * time.Microsecond
	stopRounds = 100
	seizeShare = 3           // part of the time in which all threads must stop
	holdNice   = -15         // priority of the thread that ends a stop, see nice(2)
	releaseFor = time.Second // a thread that does not come to a stop again meanwhile has ended
)

// All stops all threads of a process until a deadline at most. Errors wrap ErrRefused where it may not be stopped, and
// process.ErrNotExist or ErrPermission where they are the cause; otherwise it did not stop in time. Nothing is stopped then.
func All(p *process.Process, deadline time.Time) (*Stop, error) {
	s := &Stop{done: make(chan struct{})}
	var err error
	if s.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
		return nil, fmt.Errorf("stop pid %d: %w: make an event: %w", p.PID, ErrRefused, err)
	}
	ready := make(chan error, 1)
	go s.hold(p, deadline, ready)
	if err := <-ready; err != nil {
		<-s.done
		_ = unix.Close(s.wake)
		return s, fmt.Errorf("stop pid %d: %w", p.PID, err)
	}
	return s, nil
}

// End lets the process go, and reports whether its time was over before.
func (s *Stop) End() (timedOut bool) {
	one := [8]byte{1}
	_, _ = unix.Write(s.wake, one[:]) // without it, it ends in time
	<-s.done
	_ = unix.Close(s.wake)
	return s.timedOut
}

// Over reports whether the process was continued, or is just about to be.
func (s *Stop) Over() bool {
	select {
	case <-s.done:
		return true
	default:
		return !time.Now().Before(s.deadline)
	}
}

// Started is when the first thread stopped.
func (s *Stop) Started() time.Time { return s.start }

// Ended is when the last thread ran on; it is known after End, and where All failed.
func (s *Stop) Ended() time.Time { return s.ended }

// hold is the life of a stop. Its thread is never given back: it ends with the goroutine.
func (s *Stop) hold(p *process.Process, deadline time.Time, ready chan<- error) {
	defer close(s.done)
	runtime.LockOSThread()
	punctual()
	s.start, s.deadline = time.Now(), deadline
	err := s.seizeAll(p, s.start.Add(deadline.Sub(s.start)/seizeShare)) // to let them go takes as long
	defer func() {
		for _, t := range s.threads {
			t.letGo()
		}
		s.ended = time.Now()
	}()
	ready <- err
	if err != nil {
		return
	}
	s.timedOut = !s.await(deadline)
}

// punctual lets the thread run as soon as its time has come, also on a busy machine. It takes a right; without it, it may have to
// wait for a processor.
func punctual() {
	real := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}
	if unix.SchedSetAttr(0, &real, 0) != nil {
		_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), holdNice)
	}
}

// await waits until the stop is to end, false: until its time is over. The thread itself sleeps in the kernel, so that no other
// one has to be awake to wake it.
func (s *Stop) await(deadline time.Time) bool {
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return false
		}
		timeout := unix.NsecToTimespec(int64(left))
		n, err := unix.Ppoll([]unix.PollFd{{Fd: int32(s.wake), Events: unix.POLLIN}}, &timeout, nil)
		if n > 0 || err != nil && !errors.Is(err, unix.EINTR) {
			return n > 0
		}
	}
}

// seizeAll stops every thread, also those that are made meanwhile: until a look at the list of threads finds no new one.
func (s *Stop) seizeAll(p *process.Process, deadline time.Time) error {
	known := map[int]bool{}
	for range stopRounds {
		tids, err := Threads(p)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrRefused, err)
		}
		first := len(s.threads)
		for _, tid := range tids {
			if known[tid] || len(s.threads) >= maxStopped {
				continue
			}
			known[tid] = true
			if err := s.seize(tid); err != nil {
				return err
			}
		}
		for i := first; i < len(s.threads); i++ {
			if err := s.threads[i].wait(deadline); err != nil {
				return err
			}
		}
		if first == len(s.threads) {
			return nil
		}
	}
	return errors.New("it makes threads faster than they can be stopped")
}

// seize asks one thread to stop. One that has just ended is passed over.
func (s *Stop) seize(tid int) error {
	switch err := unix.PtraceSeize(tid); {
	case errors.Is(err, unix.ESRCH):
		return nil
	case err != nil:
		return fmt.Errorf("%w: %w", ErrRefused, permission(err))
	}
	s.threads = append(s.threads, stopped{tid: tid})
	if err := unix.PtraceInterrupt(tid); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}

// wait waits until a thread stands still, or has ended.
func (t *stopped) wait(deadline time.Time) error {
	for {
		got, err := unix.Wait4(t.tid, &t.status, unix.WALL|unix.WNOHANG, nil)
		if errors.Is(err, unix.ECHILD) || got == t.tid {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("thread %d did not stop in time: it is in the kernel", t.tid)
		}
		pause := unix.NsecToTimespec(int64(stopPoll))
		_ = unix.Nanosleep(&pause, nil) // in the kernel, like await
	}
}

// letGo lets a thread run on. A signal that came at the very moment, and stopped it first, is handed to it: it is let run with
// the signal, and stopped once more to be continued.
func (t *stopped) letGo() {
	for deadline := time.Now().Add(releaseFor); time.Now().Before(deadline); {
		const eventShift = 16 // of a stop that is not by a signal, the event is above
		if t.status.Stopped() && uint32(t.status)>>eventShift == 0 {
			if unix.PtraceCont(t.tid, int(t.status.StopSignal())) != nil || unix.PtraceInterrupt(t.tid) != nil {
				return
			}
			t.status = 0
			if t.wait(deadline) != nil {
				return
			}
			continue
		}
		if err := unix.PtraceDetach(t.tid); err == nil || t.status.Exited() || t.status.Signaled() {
			return
		}
		if t.wait(deadline) != nil { // it was not stopped yet
			return
		}
	}
}

// permission says what to do about the usual refusal.
func permission(err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: a debugger may be attached to it already: %w", process.ErrPermission, err)
	}
	return err
}

// Threads lists the thread ids of a process, as we see them.
func Threads(p *process.Process) ([]int, error) {
	entries, err := os.ReadDir("/proc/" + strconv.Itoa(p.PID) + "/task")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", process.ErrNotExist, err)
	}
	var out []int
	for _, e := range entries {
		if tid, err := strconv.Atoi(e.Name()); err == nil {
			out = append(out, tid)
		}
	}
	return out, nil
}

// OwnThreads are the threads of the process, by the numbers that they have in its own PID namespace (NSpid of proc(5)).
func OwnThreads(p *process.Process) map[uint64]bool {
	out := map[uint64]bool{}
	tids, _ := Threads(p)
	for _, tid := range tids {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/status", p.PID, tid))
		own := uint64(tid)
		if _, after, ok := strings.Cut(string(b), "\nNSpid:"); ok {
			line, _, _ := strings.Cut(after, "\n")
			if f := strings.Fields(line); len(f) > 0 {
				own, _ = strconv.ParseUint(f[len(f)-1], 10, 64)
			}
		}
		out[own] = true
	}
	return out
}

// AsleepNow looks at the threads of a process.
func AsleepNow(p *process.Process) Asleep {
	tids, err := Threads(p)
	if err != nil {
		return nil
	}
	out := Asleep{}
	for _, tid := range tids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/status", p.PID, tid))
		state, switches, ok := switchesIn(string(b))
		switch {
		case err != nil || !ok || state == "":
			return nil
		case strings.ContainsRune("ZX", rune(state[0])): // it has ended
			continue
		case !strings.ContainsRune("STt", rune(state[0])): // D can be a read into its memory
			return nil
		}
		out[tid] = switches
	}
	return out
}
