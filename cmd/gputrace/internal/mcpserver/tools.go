// SPDX-License-Identifier: Apache-2.0

package mcpserver

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/internal/exit"
)

// tools answer the questions.
type tools struct {
	program   *Options
	recording chan struct{} // has room for one: only one recording is made at a time
	mu        sync.Mutex    // protects folder
	folder    string        // of the recordings; empty: not made yet
}

// The number of rows of an answer.
const (
	defaultRows = 10
	maxRows     = 50
)

// rowsOf returns the number of rows to return.
func rowsOf(top int) int {
	if top <= 0 {
		return defaultRows
	}
	return min(top, maxRows)
}

// maxAnswer is the most that the JSON of an answer takes, bytes. It is sent twice: as text and as structured content.
const maxAnswer = 6000

// result returns an answer: its sentence for people, then the same values as JSON, for clients that do not read structured content. Rows at
// the end of an answer that is too large are left out.
func result(sentence string, answer any) (*mcp.CallToolResult, error) {
	var b bytes.Buffer
	for {
		b.Reset()
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false) // names such as f.<locals>.g stay readable
		if err := e.Encode(answer); err != nil {
			return nil, fmt.Errorf("write the answer: %w", err)
		}
		if rows, ok := answer.(interface{ cut() bool }); b.Len() <= maxAnswer || !ok || !rows.cut() {
			break
		}
	}
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: sentence}, &mcp.TextContent{Text: b.String()}}}, nil
}

func (t *tools) listProcesses(ctx context.Context, _ *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, *Processes, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	out, err := t.output(ctx, exit.Nothing, "--json")
	if err != nil {
		return nil, nil, err
	}
	answer := &Processes{}
	if err := decode(out, answer, "--json"); err != nil {
		return nil, nil, err
	}
	others := len(answer.Processes)
	answer.Processes = slices.DeleteFunc(answer.Processes, func(p Process) bool { return t.own(p.PID) != nil })
	others -= len(answer.Processes)
	answer.NotSeen = append([]string{}, answer.Missing...)
	answer.Missing = nil
	if others > 0 {
		answer.NotSeen = append(answer.NotSeen, fmt.Sprintf("processes of other users: %d, see gputrace mcp --all-users", others))
	}
	if answer.Hidden > 0 {
		answer.NotSeen = append(answer.NotSeen, fmt.Sprintf("processes that may not be read: %d", answer.Hidden))
	}
	switch n := len(answer.Processes); n {
	case 0:
		answer.Sentence = "no process that can be seen uses a GPU"
	case 1:
		answer.Sentence = "1 process uses a GPU"
	default:
		answer.Sentence = fmt.Sprintf("%d processes use a GPU", n)
	}
	r, err := result(answer.Sentence, answer)
	return r, answer, err
}

func (t *tools) whoHolds(ctx context.Context, _ *mcp.CallToolRequest, in WhoInput) (*mcp.CallToolResult, *Holders, error) {
	if err := t.own(in.PID); err != nil {
		return nil, nil, err
	}
	args := []string{"who", "-p", strconv.Itoa(in.PID), "--json", "--top", strconv.Itoa(rowsOf(in.Top))}
	if in.By != "" {
		args = append(args, "--by", in.By)
	}
	answer := &Holders{}
	if err := t.ask(ctx, answer, args...); err != nil {
		return nil, nil, err
	}
	answer.Totals = slices.DeleteFunc(answer.Totals, func(c Category) bool { return c.Blocks == 0 })
	answer.Sentence = "nothing is allocated"
	if len(answer.Rows) > 0 {
		r := &answer.Rows[0]
		answer.Sentence = fmt.Sprintf("%s holds the most: %s in %s", r.Name, table.Bytes(r.Bytes), table.Plural(r.Blocks, "block"))
	}
	r, err := result(answer.Sentence, answer)
	return r, answer, err
}

func (t *tools) verdict(ctx context.Context, _ *mcp.CallToolRequest, in RecordingInput) (*mcp.CallToolResult, *Verdict, error) {
	return t.verdictOf(ctx, in.Recording)
}

// verdictOf returns the first screen of a recording, or of a job.
func (t *tools) verdictOf(ctx context.Context, path string) (*mcp.CallToolResult, *Verdict, error) {
	path, err := file(path)
	if err != nil {
		return nil, nil, err
	}
	answer := &Verdict{}
	if err := t.ask(ctx, answer, "report", path, "--brief", "--json"); err != nil {
		return nil, nil, err
	}
	answer.Recording = path
	answer.shorten()
	r, err := result(answer.text(), answer)
	return r, answer, err
}

func (t *tools) drillDown(ctx context.Context, _ *mcp.CallToolRequest, in DrillInput) (*mcp.CallToolResult, *Rows, error) {
	path, err := file(in.Recording)
	if err != nil {
		return nil, nil, err
	}
	by, at := in.By, in.At
	if by == "" {
		by = "line"
	}
	args := []string{"export", path, "-f", "csv", "--by", by, "-o", "-"}
	if at != "" {
		args = append(args, "--at="+at)
	}
	if in.From != "" {
		args = append(args, "--from="+in.From)
	}
	if in.To != "" {
		args = append(args, "--to="+in.To)
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	out, err := t.output(ctx, exit.OK, args...)
	if err != nil {
		return nil, nil, err
	}
	answer := &Rows{By: by, At: at}
	if at == "" {
		answer.At = "end"
	}
	if err := answer.read(out, in.Match, rowsOf(in.Top)); err != nil {
		return nil, nil, err
	}
	r, err := result(answer.Sentence, answer)
	return r, answer, err
}

// read takes the rows of a table that contain a text, and sums up all rows.
func (a *Rows) read(content []byte, match string, top int) error {
	all, err := csv.NewReader(bytes.NewReader(content)).ReadAll()
	if err != nil || len(all) == 0 {
		return fmt.Errorf("read the table of gputrace export: %w", err)
	}
	column := func(record []string, name string) string {
		if i := slices.Index(all[0], name); i >= 0 {
			return record[i]
		}
		return ""
	}
	a.Rows = []Row{}
	for _, record := range all[1:] {
		bytes, _ := strconv.ParseInt(column(record, "bytes"), 10, 64)
		blocks, _ := strconv.ParseUint(column(record, "blocks"), 10, 64)
		if bytes == 0 {
			continue // all of it has been freed by then
		}
		a.InUse += bytes
		a.InRows++
		name, path := record[0], column(record, "file")
		if match != "" && !strings.Contains(name, match) && !strings.Contains(path, match) {
			continue
		}
		a.Matched += bytes
		a.MatchedRows++
		if len(a.Rows) < top {
			line, _ := strconv.Atoi(column(record, "line_number"))
			a.Rows = append(a.Rows, Row{Name: fit(name, maxStackText), File: path, Line: line, Bytes: bytes, Blocks: blocks})
		}
	}
	a.Sentence = fmt.Sprintf("%s is in use at %s, in %s by %s", table.SignedBytes(a.InUse), a.At, table.Plural(uint64(a.InRows), "row"), a.By)
	if match != "" {
		a.Sentence += fmt.Sprintf("; %s of it, in %s, has %q", table.SignedBytes(a.Matched), table.Plural(uint64(a.MatchedRows), "row"), match)
	}
	return nil
}

func (t *tools) whyOutOfMemory(ctx context.Context, _ *mcp.CallToolRequest, in FailureInput) (*mcp.CallToolResult, *Failure, error) {
	path, err := file(in.Recording)
	if err != nil {
		return nil, nil, err
	}
	var all Failures
	if err := t.ask(ctx, &all, "oom", path, "--json"); err != nil {
		return nil, nil, err
	}
	if all.Main == nil {
		answer := &Failure{Sentence: "no request for memory failed in this recording", Recovered: all.Recovered}
		r, err := result(answer.Sentence, answer)
		return r, answer, err
	}
	answer := all.OOMs[*all.Main]
	if in.Number > 0 {
		i := slices.IndexFunc(all.OOMs, func(f Failure) bool { return f.Number == in.Number })
		if i < 0 {
			return nil, nil, fmt.Errorf("there is no failure %d: the recording has %d", in.Number, len(all.OOMs)+all.More)
		}
		answer = all.OOMs[i]
	}
	answer.Sentence, answer.Failed, answer.Recovered = answer.Text, len(all.OOMs)+all.More, all.Recovered
	answer.Text = ""
	answer.shorten(rowsOf(in.Top))
	r, err := result(answer.Sentence, &answer)
	return r, &answer, err
}

func (t *tools) compare(ctx context.Context, _ *mcp.CallToolRequest, in CompareInput) (*mcp.CallToolResult, *Difference, error) {
	before, err := file(in.Before)
	if err != nil {
		return nil, nil, err
	}
	args := []string{"diff", "--json", before}
	if in.After != "" {
		after, err := file(in.After)
		if err != nil {
			return nil, nil, err
		}
		args = append(args, after)
	}
	if in.By != "" {
		args = append(args, "--by", in.By)
	}
	for _, at := range in.At {
		args = append(args, "--at="+at)
	}
	answer := &Difference{}
	if err := t.ask(ctx, answer, args...); err != nil {
		return nil, nil, err
	}
	answer.shorten(rowsOf(in.Top))
	r, err := result(answer.Verdict, answer)
	return r, answer, err
}
