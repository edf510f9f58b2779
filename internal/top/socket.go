// SPDX-License-Identifier: Apache-2.0

package top

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// Server keeps the screens of a feed and sends them to everybody who connects to a socket: those so far, then each as it comes. It
// sends a line of JSON each. A client that goes away costs nothing, and can come back.
type Server struct {
	feed     Feed
	listener net.Listener
	path     string

	mu      sync.Mutex
	changed *sync.Cond
	history [][]byte
	kept    []byte // of the newest
	first   int    // number of history[0]
	ended   bool
}

// Serve begins to listen at a path for which only this user has the right. A socket that nobody listens at any more is replaced.
func Serve(path string, feed Feed) (*Server, error) {
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		c.Close()
		return nil, fmt.Errorf("serve at %s: another gputrace does; choose another path", path)
	} else if info, err := os.Lstat(path); err == nil && info.Mode().Type() == os.ModeSocket {
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("replace the socket: %w", err)
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("serve: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("serve: %w", err)
	}
	s := &Server{feed: feed, listener: l, path: path}
	s.changed = sync.NewCond(&s.mu)
	return s, nil
}

// Run takes screens until the feed ends or ctx is done, and then lets the clients read what is left.
func (s *Server) Run(ctx context.Context) error {
	var clients sync.WaitGroup
	clients.Go(func() { s.accept(&clients) }) // counts itself: no client is added while the count is 0
	err := s.collect(ctx)
	s.mu.Lock()
	s.ended = true
	s.changed.Broadcast()
	s.mu.Unlock()
	s.listener.Close()
	clients.Wait()
	return err
}

func (s *Server) collect(ctx context.Context) error {
	for {
		screen, err := s.feed.Next(ctx)
		if errors.Is(err, io.EOF) || errors.Is(err, context.Canceled) {
			return nil
		}
		if err != nil {
			return err
		}
		line, err := json.Marshal(screen)
		if err != nil {
			return fmt.Errorf("encode a screen: %w", err)
		}
		screen.Stacks = nil // of the newest only
		kept, err := json.Marshal(screen)
		if err != nil {
			return fmt.Errorf("encode a screen: %w", err)
		}
		s.add(append(line, '\n'), append(kept, '\n'))
	}
}

// add adds a screen, and what will be kept of it when it is not the newest any more.
func (s *Server) add(line, kept []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.history); n > 0 {
		s.history[n-1] = s.kept
	}
	if len(s.history) == maxHistory {
		s.history, s.first = s.history[1:], s.first+1
	}
	s.history, s.kept = append(s.history, line), kept
	s.changed.Broadcast()
}

func (s *Server) accept(clients *sync.WaitGroup) {
	for {
		c, err := s.listener.Accept()
		if err != nil {
			return // closed
		}
		clients.Add(1)
		go func() {
			defer clients.Done()
			defer c.Close()
			r := bufio.NewReader(c)
			from, err := s.from(c, r)
			if err != nil {
				return
			}
			go s.listen(r)
			s.send(c, from)
		}()
	}
}

// The request of a client, one line per item: first where to begin.
const (
	askAll     = "all\n"
	askNow     = "now\n"
	askHolders = "holders\n"
)

// from is the number of the screen that a client begins with.
func (s *Server) from(c net.Conn, r *bufio.Reader) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(sendTimeout)); err != nil {
		return 0, fmt.Errorf("read from a client: %w", err)
	}
	line, err := r.ReadString('\n')
	if err != nil {
		return 0, fmt.Errorf("read from a client: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if line == askNow {
		return max(s.first, s.first+len(s.history)-1), c.SetReadDeadline(time.Time{})
	}
	return 0, c.SetReadDeadline(time.Time{})
}

// listen takes what a client asks for.
func (s *Server) listen(r *bufio.Reader) {
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		if line == askHolders {
			s.feed.ReadHolders()
		}
	}
}

// sendTimeout is how long a client may take for a screen.
const sendTimeout = 10 * time.Second

// send sends the screens from a number on, or from the first that is there, until the feed or the client ends.
func (s *Server) send(c net.Conn, number int) {
	for {
		s.mu.Lock()
		for number >= s.first+len(s.history) && !s.ended {
			s.changed.Wait()
		}
		if number >= s.first+len(s.history) {
			s.mu.Unlock()
			_, _ = io.WriteString(c, over) // one who has left does not need it
			return
		}
		number = max(number, s.first)
		line := s.history[number-s.first]
		s.mu.Unlock()
		number++
		if err := c.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
			return
		}
		if _, err := c.Write(line); err != nil {
			return
		}
	}
}

// over is the line behind the last screen. A connection that ends without is lost.
const over = "null\n"

// ErrLost: the recorder does not answer any more. The next call of Next connects again.
var ErrLost = errors.New("the connection to the recorder is lost")

// again is how often a lost connection is tried.
const again = time.Second

// Remote has the screens of a Server. When the Server ends before its feed does, it waits until another listens at the path, and goes on
// with those screens that it has not seen.
type Remote struct {
	path string
	last time.Time // of the newest screen

	mu    sync.Mutex
	conn  net.Conn // nil: lost
	lines *bufio.Reader
}

// Connect connects to the Server at a path. The screens are all that it has, or those from now on.
func Connect(path string, all bool) (*Remote, error) {
	r := &Remote{path: path}
	if err := r.connect(all); err != nil {
		return nil, fmt.Errorf("connect to %s: %w; gputrace top -p PID --serve %s makes one", path, err, path)
	}
	return r, nil
}

func (r *Remote) connect(all bool) error {
	c, err := net.Dial("unix", r.path)
	if err != nil {
		return err
	}
	ask := askNow
	if all {
		ask = askAll
	}
	if _, err := io.WriteString(c, ask); err != nil {
		c.Close()
		return err
	}
	r.set(c)
	return nil
}

func (r *Remote) set(c net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conn = c
	if c != nil {
		r.lines = bufio.NewReader(c)
	}
}

func (r *Remote) get() (net.Conn, *bufio.Reader) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.conn, r.lines
}

// Next implements Feed. The error is ErrLost once when the connection is lost; the next call waits for another.
func (r *Remote) Next(ctx context.Context) (*Screen, error) {
	for {
		if err := r.regain(ctx); err != nil {
			return nil, err
		}
		s, err := r.read(ctx)
		if err != nil || s.Time.After(r.last) {
			if s != nil {
				r.last = s.Time
			}
			return s, err
		}
	}
}

// regain connects again where the connection is lost, as often as it takes.
func (r *Remote) regain(ctx context.Context) error {
	for {
		if c, _ := r.get(); c != nil || r.connect(true) == nil {
			return nil
		}
		if err := sleepUntil(ctx, time.Now().Add(again)); err != nil {
			return err
		}
	}
}

func (r *Remote) read(ctx context.Context) (*Screen, error) {
	conn, lines := r.get()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	line, err := lines.ReadBytes('\n')
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		conn.Close()
		r.set(nil)
		return nil, ErrLost
	case string(line) == over:
		return nil, io.EOF
	}
	s := &Screen{}
	if err := json.Unmarshal(line, s); err != nil {
		return nil, fmt.Errorf("read a screen: %w", err)
	}
	return s, nil
}

// ReadHolders implements Feed.
func (r *Remote) ReadHolders() {
	if c, _ := r.get(); c != nil {
		_, _ = io.WriteString(c, askHolders) // what is wrong with the connection, Next says
	}
}

// Close ends the connection.
func (r *Remote) Close() error {
	c, _ := r.get()
	if c == nil {
		return nil
	}
	return c.Close()
}
