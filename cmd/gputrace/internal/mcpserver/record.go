// SPDX-License-Identifier: Apache-2.0

package mcpserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/gputrace/gputrace/internal/exit"
)

const (
	defaultSeconds = 10
	maxSeconds     = 120
	// maxRecording is the most that a recording may take on the disk; the oldest part is dropped, the figures stay complete.
	maxRecording = "256MiB"
	// recordTimeout is the time that attaching, the last look at holders and the files may take.
	recordTimeout = 3 * time.Minute
	// sayEvery is the interval of the notifications of progress, without which a client may give up.
	sayEvery = 2 * time.Second
)

// question is the key of the question whether to record.
const question = "record"

// errRefused means that the user did not permit a recording.
var errRefused = errors.New("the user did not permit the recording")

func (t *tools) record(ctx context.Context, req *mcp.CallToolRequest, in RecordInput) (*mcp.CallToolResult, *Verdict, error) {
	if in.Seconds == 0 {
		in.Seconds = defaultSeconds
	}
	if in.Seconds < 1 || in.Seconds > maxSeconds {
		return nil, nil, fmt.Errorf("seconds: %d is not between 1 and %d", in.Seconds, maxSeconds)
	}
	if err := t.own(in.PID); err != nil {
		return nil, nil, err
	}
	if asked, err := t.permitted(req, &in); asked != nil || err != nil {
		return asked, nil, err
	}
	select {
	case t.recording <- struct{}{}:
		defer func() { <-t.recording }()
	default:
		return nil, nil, errors.New("a recording is being made: wait until it is done")
	}
	folder, err := t.recordTo(ctx, req, &in)
	if err != nil {
		return nil, nil, err
	}
	return t.verdictOf(ctx, folder)
}

// permitted asks the user through the client. asked is the question if it has not been answered yet.
func (t *tools) permitted(req *mcp.CallToolRequest, in *RecordInput) (asked *mcp.CallToolResult, err error) {
	if t.program.AllowRecord {
		return nil, nil
	}
	what := fmt.Sprintf("pid %d for %d s", in.PID, in.Seconds)
	if answer, ok := req.Params.InputResponses[question].(*mcp.ElicitResult); ok && req.Params.RequestState == what {
		if answer.Action == "accept" {
			return nil, nil
		}
		return nil, errRefused
	}
	if c := req.ClientCapabilities(); c == nil || c.Elicitation == nil {
		return nil, errors.New("recording attaches probes to a process, which the user has to permit, and this client cannot ask: " +
			"start the server as gputrace mcp --allow-record, or ask the user to run: sudo gputrace record -p " + strconv.Itoa(in.PID) +
			" -d " + strconv.Itoa(in.Seconds) + "s -o FOLDER")
	}
	return &mcp.CallToolResult{
		RequestState: what,
		InputRequests: mcp.InputRequestMap{question: &mcp.ElicitParams{
			Message:         "May gputrace record the GPU memory of " + what + "? It attaches probes to the process, which goes on running.",
			RequestedSchema: map[string]any{"type": "object", "properties": map[string]any{}},
		}},
	}, nil
}

// recordTo makes the recording and returns its folder.
func (t *tools) recordTo(ctx context.Context, req *mcp.CallToolRequest, in *RecordInput) (string, error) {
	parent, err := t.recordings()
	if err != nil {
		return "", err
	}
	length := time.Duration(in.Seconds) * time.Second
	late := fmt.Errorf("the recording took %s longer than it should", recordTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, length+recordTimeout, late)
	defer cancel()
	folder := filepath.Join(parent, fmt.Sprintf("pid%d-%s", in.PID, time.Now().Format("20060102-150405")))
	args := []string{"record", "-p", strconv.Itoa(in.PID), "-d", length.String(), "-f", "none", "--max-size", maxRecording, "-o", folder}
	if in.Children {
		args = append(args, "--children")
	}
	go sayProgress(ctx, req, length)
	_, err = t.output(ctx, exit.OK, args...)
	return folder, err
}

// recordings returns the folder in which recordings are kept.
func (t *tools) recordings() (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.folder != "" {
		return t.folder, nil
	}
	folder := t.program.Folder
	var err error
	if folder == "" {
		folder, err = os.MkdirTemp("", "gputrace-mcp-")
	} else if folder, err = filepath.Abs(folder); err == nil {
		err = os.MkdirAll(folder, 0o700)
	}
	if err != nil {
		return "", fmt.Errorf("make the folder of recordings: %w", err)
	}
	t.folder = folder
	return folder, nil
}

// sayProgress notifies a client that asked for it, until ctx is done.
func sayProgress(ctx context.Context, req *mcp.CallToolRequest, length time.Duration) {
	token := req.Params.GetProgressToken()
	if token == nil {
		return
	}
	began := time.Now()
	every := time.NewTicker(sayEvery)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
		passed := time.Since(began)
		said := &mcp.ProgressNotificationParams{ProgressToken: token, Progress: passed.Seconds(), Total: length.Seconds(), Message: "recording"}
		if passed > length {
			said.Total, said.Message = passed.Seconds(), "reading what holds the memory, and writing"
		}
		if req.Session.NotifyProgress(ctx, said) != nil {
			return
		}
	}
}
