// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/gputrace/gputrace/internal/elfimage"
)

// Cache keeps unwind tables on disk, by build-id and file size. It is safe for concurrent use, also by several processes.
// Whatever is wrong with it costs time, never a result: an entry that is damaged, of another version, or built from other
// unwind data is built again, and a folder that cannot be written is not written.
type Cache struct {
	// Dir is the folder; it is created. "" means no cache.
	Dir string
	// MaxBytes bounds the sum of the entries; the least recently used are deleted. 0 means 512 MiB.
	MaxBytes int64
}

const (
	defaultCacheBytes = 512 << 20
	cacheSuffix       = ".unwind"
	cacheTemp         = ".unwind-*.tmp"
	cacheTempAge      = time.Hour // after which a temporary file's writer must have ended

	// cacheVersion changes with the form of the entries and with the meaning of Rule.
	cacheVersion = 2
	// cacheHeader is the size of an entry's head, bytes:
	//
	//	 0  magic
	//	 8  version, uint32
	//	12  CRC-32C of all that follows, uint32
	//	16  SHA-256 of what the table was built from
	//	48  number of rules, uint64
	//	56  number of rows, uint64
	//	64  rules, then rows, uint64 each
	//
	// All numbers are little-endian.
	cacheHeader  = 64
	cacheMagic   = "gputrunw"
	cacheCRCFrom = 16
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Table is f.Table, read from the cache when it is there; hit tells. A nil Cache has no entries. A file without a
// build-id is never cached.
func (c *Cache) Table(f *Frames) (t *Table, hit bool, err error) {
	if c == nil || c.Dir == "" || f.Image.BuildID() == "" {
		t, err = f.Table()
		return t, false, err
	}
	digest, err := f.digest()
	if err != nil {
		return nil, false, err
	}
	path := filepath.Join(c.Dir, fmt.Sprintf("%s-%x%s", f.Image.BuildID(), f.Image.Size, cacheSuffix))
	if t, err := readEntry(path, digest); err == nil {
		now := time.Now()
		os.Chtimes(path, now, now) // what was used last is deleted last
		return t, true, nil
	}
	t, err = f.Table()
	if err != nil || t == nil {
		return t, false, err
	}
	if writeEntry(path, digest, t) == nil {
		c.trim()
	}
	return t, false, nil
}

// digest covers everything that a table is built from, apart from the bytes of signal trampolines: a build-id
// survives tools that edit files, and a container may hold a file that claims another's.
func (f *Frames) digest() (digest [sha256.Size]byte, err error) {
	defer elfimage.OnFault(func(e error) { err = fmt.Errorf("digest of %s: %w", f.Image.Path, e) })()
	h := sha256.New()
	fmt.Fprintln(h, f.Image.Machine())
	for i := range f.Image.Segments {
		s := &f.Image.Segments[i]
		fmt.Fprintln(h, s.Kind, s.Flags, s.Addr, s.MemSize)
	}
	if sec, err := f.frameSection(); err == nil && sec != nil {
		fmt.Fprintln(h, sec.addr, sec.hdr, sec.exact)
		h.Write(sec.data)
		h.Write(f.searchTable(sec))
	}
	return [sha256.Size]byte(h.Sum(nil)), nil
}

// readEntry reads and checks an entry.
func readEntry(path string, digest [sha256.Size]byte) (*Table, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	var head [cacheHeader]byte
	if _, err := io.ReadFull(f, head[:]); err != nil {
		return nil, err
	}
	nRules, nRows, err := checkHead(head[:], digest, st.Size())
	if err != nil {
		return nil, err
	}
	words := make([]uint64, nRules+nRows)
	if _, err := io.ReadFull(f, wordBytes(words)); err != nil {
		return nil, err
	}
	sum := crc32.Update(crc32.Checksum(head[cacheCRCFrom:], castagnoli), castagnoli, wordBytes(words))
	if want := binary.LittleEndian.Uint32(head[12:]); sum != want {
		return nil, fmt.Errorf("checksum %#x, want %#x", sum, want)
	}
	return &Table{Rules: words[:nRules:nRules], Rows: words[nRules:]}, nil
}

// checkHead bounds the numbers by the size of the file before anything is allocated for them.
func checkHead(head []byte, digest [sha256.Size]byte, size int64) (nRules, nRows uint64, err error) {
	version := binary.LittleEndian.Uint32(head[8:])
	nRules, nRows = binary.LittleEndian.Uint64(head[48:]), binary.LittleEndian.Uint64(head[56:])
	words := uint64(size-cacheHeader) / 8
	switch {
	case string(head[:8]) != cacheMagic || version != cacheVersion:
		return 0, 0, fmt.Errorf("magic %q, version %d", head[:8], version)
	case [sha256.Size]byte(head[16:48]) != digest:
		return 0, 0, errors.New("built from other unwind data")
	case nRules == 0 || nRules > MaxRules || nRules > words || nRows != words-nRules || (size-cacheHeader)%8 != 0:
		return 0, 0, fmt.Errorf("%d rules and %d rows in %d words", nRules, nRows, words)
	}
	return nRules, nRows, nil
}

// writeEntry writes beside the entry and renames, so that a reader sees all of it or nothing.
func writeEntry(path string, digest [sha256.Size]byte, t *Table) error {
	var head [cacheHeader]byte
	copy(head[:], cacheMagic)
	binary.LittleEndian.PutUint32(head[8:], cacheVersion)
	copy(head[16:], digest[:])
	binary.LittleEndian.PutUint64(head[48:], uint64(len(t.Rules)))
	binary.LittleEndian.PutUint64(head[56:], uint64(len(t.Rows)))
	parts := [][]byte{head[:], wordBytes(t.Rules), wordBytes(t.Rows)}
	sum := crc32.Checksum(head[cacheCRCFrom:], castagnoli)
	sum = crc32.Update(crc32.Update(sum, castagnoli, parts[1]), castagnoli, parts[2])
	binary.LittleEndian.PutUint32(head[12:], sum)

	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, cacheTemp)
	if err != nil {
		return err
	}
	for _, p := range parts {
		if err == nil {
			_, err = f.Write(p)
		}
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// wordBytes views words as the bytes of a little-endian machine, the only kind that this package reads files on.
func wordBytes(w []uint64) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(w))), 8*len(w))
}

// trim deletes the least recently used entries above the limit, and what killed writers left behind.
func (c *Cache) trim() {
	limit := cmp.Or(c.MaxBytes, defaultCacheBytes)
	files, _ := os.ReadDir(c.Dir)
	var entries []os.FileInfo
	total := int64(0)
	for _, d := range files {
		info, err := d.Info()
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		if temp, _ := filepath.Match(cacheTemp, d.Name()); temp && time.Since(info.ModTime()) > cacheTempAge {
			os.Remove(filepath.Join(c.Dir, d.Name()))
		}
		if strings.HasSuffix(d.Name(), cacheSuffix) {
			entries = append(entries, info)
			total += info.Size()
		}
	}
	slices.SortFunc(entries, func(a, b os.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	for _, e := range entries {
		if total <= limit {
			return
		}
		if os.Remove(filepath.Join(c.Dir, e.Name())) == nil {
			total -= e.Size()
		}
	}
}
