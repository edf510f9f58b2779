// SPDX-License-Identifier: Apache-2.0

package table

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/balance"
	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/export/internal/layout"
	"github.com/gputrace/gputrace/heap"
)

// parts is a caching allocator whose state is known: that of training().
var parts = balance.Torch{
	Reserved: 33*gib + 512*mib, Allocated: 27*gib + 800*mib, Requested: 27*gib + 700*mib, Pending: 12 * mib, InactiveSplit: gib,
	Free: 4*gib + 724*mib,
}

func owner(name, file string, objects, bytes uint64) balance.OwnerUse {
	return balance.OwnerUse{Owner: stacks.Owner{Name: name, File: file}, Count: heap.Count{Objects: objects, Bytes: bytes}}
}

// balanceOf is a balance of which the terms are chosen and the sum of the owners is made.
func balanceOf(device event.Device, used uint64, torch balance.Torch, owners ...balance.OwnerUse) balance.Device {
	d := balance.Device{
		PID: 48211, Device: device, Used: used, Torch: torch, Owners: owners, Watched: true, SegmentBytes: event.Unknown, Total: event.Unknown,
		Driver: figures.DriverUse{Used: figures.Bytes(used), Name: "NVIDIA H200", UUID: "GPU-1", Total: 140 * gib, All: 50 * gib},
	}
	for _, o := range owners {
		d.Other.Objects, d.Other.Bytes = d.Other.Objects+o.Objects, d.Other.Bytes+o.Bytes
	}
	return d
}

// crowded has more owners than are listed, and a name that a program could choose.
func crowded() balance.Device {
	owners := []balance.OwnerUse{
		owner("NCCL", "/opt/venv/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2", 9, 921*mib),
		owner("cuBLAS", "/x/libcublas.so.13", 2, 16*mib),
		owner(strings.Repeat("deep_", 10)+"name.py:12345 f\x1b[2J", "", 1, 8*mib), owner("libfoo.so", "/x/libfoo.so.3", 1, 4*mib),
	}
	for i := range 9 {
		owners = append(owners, owner("line.py:"+string(rune('1'+i)), "", 1, mib))
	}
	d := balanceOf(cuda0, 36*gib, parts, owners...)
	d.SegmentBytes, d.Total = parts.Reserved, parts.Reserved
	return d
}

var balances = map[string]balance.Process{
	"whole": {Devices: []balance.Device{func() balance.Device { d := crowded(); d.Whole = true; return d }()}},
	"late": {
		Devices: []balance.Device{func() balance.Device {
			d := crowded()
			d.Used, d.Pools, d.Managed, d.Doubtful, d.SegmentBytes = 34*gib, true, 8*mib, 4*mib, parts.Reserved-2*mib
			return d
		}()},
		Host: heap.Count{Objects: 3, Bytes: 96 * mib}, Shared: heap.Count{Objects: 2, Bytes: 5 * mib, Unsized: 1},
		Virtual: heap.Count{Objects: 1, Bytes: 64 * mib},
		Moved:   true,
	},
	"odd": {
		Devices: []balance.Device{
			func() balance.Device {
				d := balanceOf(cuda0, event.Unknown, balance.Torch{Reserved: gib, Allocated: mib, Requested: event.Unknown, Pending: event.Unknown,
					InactiveSplit: event.Unknown, Free: event.Unknown})
				d.Why, d.TorchWhy = "NVML lists the process without its memory", "the process has ended"
				return d
			}(),
			func() balance.Device {
				d := balanceOf(cuda1, 3*gib, balance.Torch{Reserved: event.Unknown})
				d.TorchWhy = "this build of PyTorch is not known"
				return d
			}(),
			func() balance.Device {
				d := balanceOf(odd, event.Unknown, balance.Torch{}, owner("NCCL", "", 1, 64*mib))
				d.Why = "which device it is on is not known"
				return d
			}(),
		},
		Unplaced: []figures.DriverUse{{Device: -1, Used: 5 * gib, Name: "Tesla\x1b T4", UUID: "GPU-2"},
			{Device: -1, Used: figures.Unknown, Name: "Tesla T4"}},
		DriverWhy: "which device is which is not known: CUDA numbers NVIDIA H200 and Tesla T4 by their speed; set " +
			"CUDA_DEVICE_ORDER=PCI_BUS_ID for the job",
	},
	"raw": {Devices: []balance.Device{balanceOf(cuda0, 100*mib, balance.Torch{})}},
}

func TestSummaryBalance(t *testing.T) {
	for name, b := range balances {
		t.Run(name, func(t *testing.T) {
			b.PID = 48211
			for i := range b.Devices {
				addsUp(t, &b.Devices[i])
			}
			in := inputs["training"]
			in.Balance = &b
			goldens(t, "summary.balance."+name, func(w io.Writer, width int) error {
				var buf bytes.Buffer
				in.Width = width
				err := Summary(&buf, in)
				text, _, _ := strings.Cut(buf.String(), "\nlive by Python line")
				_, writing := io.WriteString(w, text)
				return errors.Join(err, writing)
			})
			golden(t, "comments.balance."+name, strings.Join(Comments(in), "\n")+"\n")
		})
	}
}

// addsUp adds up the terms as they are shown.
func addsUp(t *testing.T, d *balance.Device) {
	t.Helper()
	rest, known := d.Remainder()
	if !known {
		return
	}
	for _, n := range []int{1, shownOwner, 1000} {
		sum := rest
		for _, row := range append(torchParts(d), ownerParts(d, n)...) {
			sum += int64(row.bytes)
		}
		require.EqualValues(t, d.Used, sum)
	}
}

// TestWrapped: nothing of a long text is lost, and it breaks before a sign.
func TestWrapped(t *testing.T) {
	for text, lines := range map[string]int{
		"":                       1,
		"short":                  1,
		strings.Repeat("x", 300): 5,
		strings.Repeat("ä", 300): 5,
		strings.Repeat("a", 60) + " + " + strings.Repeat("bb ", 40) + "- c": 3,
	} {
		var buf bytes.Buffer
		p := &printer{Printer: layout.Printer{W: bufio.NewWriter(&buf)}}
		p.wrapped("name", text)
		require.NoError(t, p.W.Flush())
		got := strings.Split(strings.TrimSuffix(buf.String(), "\n"), "\n")
		require.Len(t, got, lines, "%q", got)
		var rest strings.Builder
		for i, l := range got {
			require.LessOrEqual(t, utf8.RuneCountInString(l), layout.DefaultColumns)
			if i == 0 {
				l = strings.TrimPrefix(l, "name")
			} else if strings.Contains(text, "+") && i == 1 {
				require.True(t, strings.HasPrefix(strings.TrimSpace(l), "+"), l)
			}
			rest.WriteString(strings.ReplaceAll(l, " ", ""))
		}
		require.Equal(t, strings.ReplaceAll(text, " ", ""), rest.String())
	}
}
