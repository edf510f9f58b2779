// SPDX-License-Identifier: Apache-2.0

package dataset

import (
	"embed"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/parquet-go/parquet-go"

	"github.com/gputrace/gputrace/export/internal/columns"
	"github.com/gputrace/gputrace/internal/output"
	"github.com/gputrace/gputrace/internal/words"
)

// Queries are the questions that every dataset comes with, in its folder of that name.
//
//go:embed queries
var Queries embed.FS

// QueryFolder is the folder of Queries.
const QueryFolder = "queries"

// Dataset is a folder that rows are written to. Several programs may write to it at the same time, each to files of its own.
type Dataset struct{ Dir string }

// Open makes the folder if it does not exist, and writes the queries into it.
func Open(dir string) (*Dataset, error) {
	d := &Dataset{dir}
	entries, err := Queries.ReadDir(QueryFolder)
	if err != nil {
		return nil, fmt.Errorf("list the queries: %w", err)
	}
	for _, e := range entries {
		text, err := Queries.ReadFile(QueryFolder + "/" + e.Name())
		if err != nil {
			return nil, fmt.Errorf("read the query %s: %w", e.Name(), err)
		}
		path := filepath.Join(dir, QueryFolder, e.Name())
		if _, err := os.Lstat(path); err == nil { // it may have been changed
			continue
		}
		if err := d.file(path, func(w io.Writer) error {
			_, err := w.Write(text)
			return err
		}); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// file writes a file, which appears under its name when it is complete, and replaces an older one.
func (d *Dataset) file(path string, content func(io.Writer) error) error {
	name, err := d.stage(path, content)
	if err != nil {
		return err
	}
	return publish(name, path)
}

// publish renames a complete file to its own name.
func publish(name, path string) error {
	if err := os.Rename(name, path); err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(name))
	}
	return nil
}

// stage writes a file under another name beside it, and returns that.
func (d *Dataset) stage(path string, content func(io.Writer) error) (name string, err error) {
	if err := makeFolder(filepath.Dir(path)); err != nil {
		return "", fmt.Errorf("make a folder of the dataset: %w", err)
	}
	name = filepath.Join(filepath.Dir(path), fmt.Sprintf(".%s.%d.%d%s", filepath.Base(path), os.Getpid(), time.Now().UnixNano(), unfinished))
	tmp, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return "", fmt.Errorf("make a file of the dataset: %w", err)
	}
	if err = errors.Join(content(tmp), tmp.Close()); err == nil {
		err = output.GiveToUser(name)
	}
	if err != nil {
		return "", errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(name))
	}
	return name, nil
}

// unfinished ends the names of files that are not complete, which no engine reads.
const unfinished = ".tmp"

var unfinishedName = regexp.MustCompile(`^\.(.+)\.\d+\.\d+` + regexp.QuoteMeta(unfinished) + "$")

// Unfinished returns the name that an unfinished file was to get; ok is false for other files.
func Unfinished(file string) (name string, ok bool) {
	m := unfinishedName.FindStringSubmatch(file)
	if m == nil {
		return "", false
	}
	return m[1], true
}

// makeFolder makes a folder and those above it, which belong to the user who called sudo, if there is one.
func makeFolder(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if parent := filepath.Dir(dir); parent != dir {
		if err := makeFolder(parent); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return output.GiveToUser(dir)
}

// Part is a folder of each table: one rank of a job on one day.
type Part struct {
	Job  string // empty: not known
	Day  string // "2026-11-28"
	Rank int    // -1: not known
}

// Part returns the part of the dataset in which rows of a time are.
func (p *Process) Part(t time.Time) Part {
	return Part{Job: p.job(), Day: t.UTC().Format(time.DateOnly), Rank: p.Rank}
}

// none is the value of a column that is null, for all engines that read Hive's layout.
const none = "__HIVE_DEFAULT_PARTITION__"

// Folder returns the folder of the part, below the table.
func (p Part) Folder() string {
	rank := none
	if p.Rank >= 0 {
		rank = strconv.Itoa(p.Rank)
	}
	return filepath.Join("job="+folderName(p.Job), "day="+p.Day, "rank="+rank)
}

const (
	// maxJob is the maximum length of a job's name, characters.
	maxJob = 128
	// maxFolder is the maximum length of the name of its folder, bytes.
	maxFolder = 220
)

// folderName returns the folder of a text. Hive's escapes are for ASCII only: engines read others each in their own way. A name of which
// something is lost gets a checksum of the whole, so that two jobs do not become one.
func folderName(s string) string {
	if s == "" {
		return none
	}
	var out strings.Builder
	text := words.Cut(clean(s), maxJob)
	lost := text != clean(s)
	for _, c := range text {
		if c > unicode.MaxASCII {
			c, lost = '_', true
		}
		plain := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("-._", c)
		next := string(c)
		if !plain || c == '_' && out.Len() == 0 { // the name of null begins with it
			next = fmt.Sprintf("%%%02X", c)
		}
		if out.Len()+len(next) > maxFolder {
			lost = true
			break
		}
		out.WriteString(next)
	}
	if lost {
		fmt.Fprintf(&out, "-%08x", crc32.ChecksumIEEE([]byte(s)))
	}
	return out.String()
}

// File is a file that was written.
type File struct {
	Path  string
	Bytes int64
}

// Write writes rows of a part into a file of each table, under this name. Both are complete before either replaces an older one, and the
// lines are first: a moment that can be read has its lines.
func (d *Dataset) Write(p Part, name, version string, moments []MomentRow, lines []LineRow) (files []File, err error) {
	var staged []string
	for _, t := range []struct {
		table string
		write func(w io.Writer) error
	}{
		{Lines, func(w io.Writer) error { return writeRows(w, lineSchema, version, lines) }},
		{Moments, func(w io.Writer) error { return writeRows(w, momentSchema, version, moments) }},
	} {
		path := filepath.Join(d.Dir, t.table, p.Folder(), name+".parquet")
		size := int64(0)
		name, err := d.stage(path, func(w io.Writer) error {
			c := &counter{w: w}
			err := t.write(c)
			size = c.n
			return err
		})
		if err != nil {
			for _, name := range staged {
				err = errors.Join(err, os.Remove(name))
			}
			return nil, err
		}
		files, staged = append(files, File{path, size}), append(staged, name)
	}
	for i := range files {
		if err := publish(staged[i], files[i].Path); err != nil {
			for _, name := range staged[i+1:] {
				err = errors.Join(err, os.Remove(name))
			}
			return nil, err
		}
	}
	return files, nil
}

// counter counts what is written.
type counter struct {
	w io.Writer
	n int64
}

// Write implements io.Writer.
func (c *counter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

func writeRows[R any](w io.Writer, schema *parquet.Schema, version string, rows []R) error {
	out := columns.NewWriter[R](w, schema, version)
	for i := range rows {
		if err := out.Write(&rows[i]); err != nil {
			return err
		}
	}
	return out.Close()
}
