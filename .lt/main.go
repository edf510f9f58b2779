package main

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"sort"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
)

var stack = regexp.MustCompile(`stack depth (\S+)`)
var proc = regexp.MustCompile(`processed (\d+) insns`)

func main() {
	rlimit.RemoveMemlock()
	path := "/bin/t.o"
	if len(os.Args) > 1 {
		path = os.Args[1]
	}
	for _, inplace := range []bool{false, true} {
		spec, err := ebpf.LoadCollectionSpec(path)
		if err != nil {
			fmt.Println(err)
			return
		}
		if inplace {
			type dm struct {
				Base, Mask uint64
				Levels     uint32
				Pad        uint32
			}
			if err := spec.Variables["cfg_direct"].Set(dm{0xffff888000000000, 1<<52 - 4096, 4, 0}); err != nil {
				fmt.Println(err)
			}
		}
		spec.Variables["cfg_find_vma"].Set(uint32(1))
		spec.Variables["cfg_slot_mask"].Set(uint32(63))
		if os.Getenv("FREESTACKS") != "" {
			spec.Variables["cfg_free_stacks"].Set(uint32(1))
		}
		var names []string
		for n := range spec.Programs {
			names = append(names, n)
		}
		sort.Strings(names)
		total := 0
		for _, n := range names { if os.Getenv("ALL") == "" && n != "report" && n != "enter" { continue }
			one := spec.Copy()
			for o := range one.Programs {
				if o != n {
					delete(one.Programs, o)
				}
			}
			begin := time.Now()
			level := ebpf.LogLevelStats; if os.Getenv("RETRY") != "" { level = ebpf.LogLevelInstruction }; if os.Getenv("FULL") == n { level = ebpf.LogLevelInstruction }
			c, err := ebpf.NewCollectionWithOptions(one, ebpf.CollectionOptions{Programs: ebpf.ProgramOptions{LogLevel: ebpf.LogLevel(level), LogSizeStart: 1 << 28}})
			took := time.Since(begin)
			if err != nil {
				fmt.Printf("in place %v %s FAIL %.1fs: %.300v\n", inplace, n, took.Seconds(), err)
				if os.Getenv("DETAIL") == "" { os.Setenv("DETAIL", "1"); one2 := spec.Copy(); for o := range one2.Programs { if o != n { delete(one2.Programs, o) } }; _, err = ebpf.NewCollectionWithOptions(one2, ebpf.CollectionOptions{Programs: ebpf.ProgramOptions{LogLevel: ebpf.LogLevelInstruction, LogSizeStart: 1 << 27}}) }
				var ve *ebpf.VerifierError
				if errors.As(err, &ve) {
					l := ve.Log
					if len(l) > 60 {
						l = l[len(l)-60:]
					}
					for _, s := range l {
						fmt.Println("    |", s)
					}
				}
				continue
			}
			for _, p := range c.Programs {
				k := 0
				if m := proc.FindStringSubmatch(p.VerifierLog); m != nil {
					fmt.Sscan(m[1], &k)
				}
				total += k
				st := ""
				if m := stack.FindStringSubmatch(p.VerifierLog); m != nil {
					st = m[1]
				}
				fmt.Printf("in place %v %-18s ok %.2fs processed %d stack %s\n", inplace, n, took.Seconds(), k, st)
			}
			if os.Getenv("FULL") == n { for _, p := range c.Programs { os.WriteFile("/tmp/full.log", []byte(p.VerifierLog), 0o644) } }; _ = strings.TrimSpace
			c.Close()
		}
		fmt.Println("in place", inplace, "total", total)
	}
}
