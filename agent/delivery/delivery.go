// SPDX-License-Identifier: Apache-2.0

// Package delivery sends messages to HTTP servers. Each Sender has a bounded queue, tries again after growing pauses, counts what it sends
// and what it drops, and writes neither the address nor the credentials of its server to the log.
package delivery

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Options are the options of a Sender. All fields are needed, except those that say otherwise.
type Options struct {
	// Kind and Name identify the sender in the log, as in webhook=team.
	Kind, Name string
	// Destination is the server.
	Destination Destination
	// Path is added to the address of the server. Empty: nothing is.
	Path string
	// Header is sent with each message, beside the headers of Destination. Nil: none.
	Header http.Header
	// Retry reports whether a message may be accepted later, after the server has answered with a status other than 2xx.
	Retry func(status int) bool
	// Rejected returns the number of items of an accepted message that the server has refused, by its answer. Nil: it refuses none.
	Rejected func(answer []byte) uint64
	// MaxTries is how often a message is tried. The first pause between two attempts is Pause; each is twice as long as the one before, up
	// to MaxPause. A server that names a time in Retry-After is asked again after that time, but no later than after MaxPause.
	MaxTries        int
	Pause, MaxPause time.Duration
	// MaxMessages and MaxBytes limit the messages that wait, beside the one that is being sent.
	MaxMessages, MaxBytes int
	// Newest drops the oldest messages from a full queue, rather than the new one.
	Newest bool
	// Timeout bounds an attempt. 0: 10 seconds.
	Timeout time.Duration
	Log     *slog.Logger
}

// Sender sends messages to one server, in their order. Its methods may be called from several goroutines.
type Sender struct {
	o      Options
	server *server
	wake   chan struct{} // receives when a message begins to wait

	mu      sync.Mutex
	waiting [][]byte
	bytes   int // of the messages that wait

	failing bool // the last attempt failed; in the goroutine of Run

	sent, failed, dropped, retries, rejected, sentBytes atomic.Uint64
}

// Counts are the counters of a Sender since it was made, and what waits now.
type Counts struct {
	// Sent, Failed and Dropped are messages: accepted by the server, refused or given up, and removed from a full queue.
	Sent, Failed, Dropped uint64
	// Retries are attempts after the first one of a message.
	Retries uint64
	// Rejected are items of accepted messages that the server has refused.
	Rejected uint64
	// SentBytes is the size of the accepted messages, bytes.
	SentBytes uint64
	// Waiting is the number of messages that wait, and WaitingBytes their size.
	Waiting, WaitingBytes int
}

// maxAnswer is how much of an answer is read, bytes.
const maxAnswer = 1 << 16

// New returns a sender. The error says what the destination lacks, without its address.
func New(o *Options) (*Sender, error) {
	s := &Sender{o: *o, wake: make(chan struct{}, 1)}
	if s.o.Timeout == 0 {
		s.o.Timeout = 10 * time.Second
	}
	var err error
	if s.server, err = o.Destination.open(o.Path); err != nil {
		return nil, fmt.Errorf("%s %s: %w", o.Kind, o.Name, err)
	}
	return s, nil
}

// Add lets a message wait until it can be sent, and does not wait itself. The sender keeps the slice.
func (s *Sender) Add(message []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.waiting) >= s.o.MaxMessages || s.bytes+len(message) > s.o.MaxBytes {
		s.dropped.Add(1)
		if !s.o.Newest || len(s.waiting) == 0 {
			return
		}
		s.shift()
	}
	s.waiting = append(s.waiting, message)
	s.bytes += len(message)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// shift removes the oldest message that waits; nil: none does. The caller holds the lock.
func (s *Sender) shift() []byte {
	if len(s.waiting) == 0 {
		return nil
	}
	m := s.waiting[0]
	s.waiting[0] = nil // the slice must not keep it
	s.waiting = s.waiting[1:]
	s.bytes -= len(m)
	return m
}

// Run sends the messages until ctx is done. Messages that wait then are not sent.
func (s *Sender) Run(ctx context.Context) {
	defer s.server.client.CloseIdleConnections()
	for ctx.Err() == nil {
		s.mu.Lock()
		m := s.shift()
		s.mu.Unlock()
		if m != nil {
			s.deliver(ctx, m)
			continue
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
		}
	}
}

// Counts returns the counters.
func (s *Sender) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Counts{
		Sent: s.sent.Load(), Failed: s.failed.Load(), Dropped: s.dropped.Load(), Retries: s.retries.Load(), Rejected: s.rejected.Load(),
		SentBytes: s.sentBytes.Load(), Waiting: len(s.waiting), WaitingBytes: s.bytes,
	}
}

// deliver sends a message, and tries again while the server may accept it later.
func (s *Sender) deliver(ctx context.Context, m []byte) {
	pause := s.o.Pause
	for try := 1; ; try++ {
		r := s.post(ctx, m)
		if r.err == nil {
			if s.failing {
				s.failing = false
				s.o.Log.Info("messages are delivered again", s.o.Kind, s.o.Name)
			}
			s.sentBytes.Add(uint64(len(m)))
			s.rejected.Add(r.rejected)
			s.sent.Add(1) // last, so that Counts never has it without the others
			return
		}
		if !r.again || try >= s.o.MaxTries {
			s.failing = true
			s.o.Log.Warn("a message was not delivered", s.o.Kind, s.o.Name, "error", r.err, "attempts", try)
			s.failed.Add(1)
			return
		}
		wait := jittered(pause)
		if r.after > 0 {
			wait = min(jittered(r.after), s.o.MaxPause)
		}
		if !s.failing {
			s.failing = true
			s.o.Log.Warn("a message is not delivered yet", s.o.Kind, s.o.Name, "error", r.err, "again after", wait.Round(time.Millisecond))
		}
		select {
		case <-ctx.Done():
			s.failed.Add(1)
			return
		case <-time.After(wait):
			pause = min(2*pause, s.o.MaxPause)
		}
		s.retries.Add(1)
	}
}

// jittered returns a pause of up to a fifth more, so that many senders do not come back at one moment.
func jittered(d time.Duration) time.Duration { return d + time.Duration(rand.Int64N(int64(d)/5+1)) }

// result is the result of an attempt.
type result struct {
	err      error         // nil: the server has accepted the message
	again    bool          // the server may accept it later
	after    time.Duration // the pause that the server asks for; 0: none
	rejected uint64
}

// post makes one attempt.
func (s *Sender) post(ctx context.Context, m []byte) result {
	ctx, cancel := context.WithTimeout(ctx, s.o.Timeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.server.address, bytes.NewReader(m))
	if err != nil {
		return result{err: reason(err)}
	}
	for name, values := range s.o.Header {
		r.Header[name] = values
	}
	if err := s.o.Destination.authorize(r); err != nil {
		return result{err: err, again: true} // a secret that is being replaced is there again soon
	}
	response, err := s.server.client.Do(r)
	if err != nil {
		return result{err: reason(err), again: true}
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer)) // to its end, so that the connection can be used again
	switch code := response.StatusCode; {
	case code/100 != 2:
		return result{
			err:   fmt.Errorf("the receiver answered %d %s", code, http.StatusText(code)),
			again: s.o.Retry(code), after: retryAfter(response.Header.Get("Retry-After"), time.Now()),
		}
	case err == nil && s.o.Rejected != nil:
		return result{rejected: s.o.Rejected(answer)}
	}
	return result{}
}

// retryAfter returns the pause that the header Retry-After asks for, in seconds or as a date (RFC 9110, section 10.2.3). 0: none.
func retryAfter(text string, now time.Time) time.Duration {
	const longest = 24 * time.Hour
	if seconds, err := strconv.ParseUint(text, 10, 32); err == nil {
		return min(time.Duration(seconds)*time.Second, longest)
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	return min(max(at.Sub(now), 0), longest)
}
