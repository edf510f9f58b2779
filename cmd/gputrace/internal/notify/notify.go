// SPDX-License-Identifier: Apache-2.0

// Package notify hands messages on while something else must not wait: to a file, a command and a webhook, from a goroutine of its own,
// with a bounded queue and a timeout for each.
package notify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Options say where messages go.
type Options struct {
	// Log gets each message as a line. nil: none.
	Log io.Writer
	// Command is run by a shell with the message as its standard input, and its text in GPUTRACE_ALERT. Empty: none.
	Command string
	// Webhook gets each message as the body of a POST. Empty: none.
	Webhook string
	// Timeout bounds each delivery. 0: 10 seconds.
	Timeout time.Duration
}

// queued is how many messages may wait.
const queued = 16

// closing is how long Close waits for what is being delivered.
const closing = 10 * time.Second

type message struct {
	body []byte
	text string
}

// Notifier delivers messages in their order. Send and Close are for one goroutine.
type Notifier struct {
	options Options
	queue   chan message
	done    chan struct{}
	stop    context.CancelFunc

	mu     sync.Mutex
	failed []error // that were not returned yet
	lost   int     // messages, since the last that was accepted
}

// New starts a notifier. Close it.
func New(o Options) *Notifier {
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Second
	}
	ctx, stop := context.WithCancel(context.Background())
	n := &Notifier{options: o, queue: make(chan message, queued), done: make(chan struct{}), stop: stop}
	go func() {
		defer close(n.done)
		for m := range n.queue {
			n.deliver(ctx, m)
		}
	}()
	return n
}

// Send hands a message on and does not wait. The error is what went wrong since the last call: deliveries that
// failed, and messages for which there was no room.
func (n *Notifier) Send(body []byte, text string) error {
	select {
	case n.queue <- message{body, text}:
	default:
		n.mu.Lock()
		n.lost++
		n.mu.Unlock()
	}
	return n.errors()
}

// errors takes what went wrong so far.
func (n *Notifier) errors() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := n.failed
	n.failed = nil
	if n.lost > 0 {
		out = append(out, fmt.Errorf("%d alerts were not delivered: the command or webhook is too slow", n.lost))
		n.lost = 0
	}
	return errors.Join(out...)
}

// Close waits for what is being delivered, for a while, and returns what went wrong.
func (n *Notifier) Close() error {
	close(n.queue)
	select {
	case <-n.done:
	case <-time.After(closing):
		n.stop()
		<-n.done
	}
	n.stop()
	return n.errors()
}

func (n *Notifier) deliver(ctx context.Context, m message) {
	for _, err := range []error{n.log(m), n.run(ctx, m), n.post(ctx, m)} {
		if err != nil {
			n.mu.Lock()
			n.failed = append(n.failed, err)
			n.mu.Unlock()
		}
	}
}

func (n *Notifier) log(m message) error {
	if n.options.Log == nil {
		return nil
	}
	if _, err := n.options.Log.Write(append(bytes.Clone(m.body), '\n')); err != nil {
		return fmt.Errorf("write the alert: %w", err)
	}
	return nil
}

// run runs the command.
func (n *Notifier) run(ctx context.Context, m message) error {
	if n.options.Command == "" {
		return nil
	}
	return n.start(ctx, m, "run the command of an alert", "/bin/sh", "-c", n.options.Command)
}

// post sends a message by curl: Go's own client would be a tenth of the program. An answer that redirects is an
// error: without it the alert would be delivered nowhere, and nobody would know; followed, it would go where the
// user has not said.
func (n *Notifier) post(ctx context.Context, m message) error {
	if n.options.Webhook == "" {
		return nil
	}
	return n.start(ctx, m, "send an alert", "curl", "--silent", "--show-error", "--fail", "--output", "/dev/null",
		"--location", "--max-redirs", "0", "--header", "Content-Type: application/json", "--data-binary", "@-", "--url", n.options.Webhook)
}

// start runs a program with a message. One that takes too long is ended with all that it has started.
func (n *Notifier) start(ctx context.Context, m message, step, name string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, n.options.Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	var said bytes.Buffer
	cmd.Stdin, cmd.Stderr = bytes.NewReader(m.body), &said
	cmd.Env = append(os.Environ(), "GPUTRACE_ALERT="+m.text)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // what it leaves behind may keep standard error
	err := cmd.Run()
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%s: it takes longer than %s: %w", step, n.options.Timeout, ctx.Err())
	}
	return fmt.Errorf("%s: %w: %s", step, err, bytes.TrimSpace(said.Bytes()[:min(said.Len(), maxSaid)]))
}

// maxSaid is how much of what a program says is shown, bytes.
const maxSaid = 1000
