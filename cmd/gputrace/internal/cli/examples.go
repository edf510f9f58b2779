// SPDX-License-Identifier: Apache-2.0

package cli

// Example is a command line and its purpose.
type Example struct{ Line, What string }

// Examples are shown in the help of a command and in the manual. Every command has at least one; "" is the program itself.
var Examples = map[string][]Example{
	"": {
		{"sudo gputrace 4242", "attach to process 4242, record until Ctrl-C or until it ends"},
		{"gputrace help report", "what report can do"},
	},
	"record": {
		{"sudo gputrace record -p 4242 -d 10s -o result", "ten seconds of it, into the new folder result"},
		{"sudo gputrace 4242 --wait --max-age 1h", "from its first allocation on, and keep the last hour"},
		{"sudo gputrace record -p 4242 --children -o result", "a launcher with its ranks and loader workers, also later ones"},
	},
	"run": {
		{"sudo gputrace run --alert 'growth>0' --alert 'use>20GiB' --alert-webhook https://example.com/hook -- python train.py",
			"be notified while it runs"},
		{"sudo gputrace run -o result -- torchrun --nproc-per-node 8 train.py", "every rank and every worker, from its first allocation"},
		{"sudo gputrace run --check --max-peak 10GiB --no-leaks -o result -- python train.py", "a test of its memory, in one line of a workflow"},
	},
	"report": {
		{"gputrace report result/trace.gputrace", "print the summary again"},
		{"gputrace report result --brief", "only the verdict; with --json the whole screen"},
		{"gputrace report result/trace.gputrace --at peak --by function --top 5", "the five functions that hold the most at the peak"},
	},
	"top": {
		{"sudo gputrace top -p 4242", "a live screen: what is in use by line and holder, what grows; ? shows its keys"},
		{"gputrace top result/trace.gputrace", "the same for a recording, at any moment"},
		{"sudo gputrace top -p 4242 --serve /run/job.sock", "no screen, but others can connect: gputrace top --connect /run/job.sock"},
	},
	"oom": {
		{"gputrace oom result", "why memory ran out, what holds the rest, and what was free"},
		{"sudo gputrace oom -p 4242 --until-oom --json", "wait until a request fails, and report why as JSON"},
	},
	"leaks": {
		{"gputrace leaks result/trace.gputrace", "whether memory grows from step to step, by which line, how much, since when"},
		{"gputrace leaks result --json --step-on train_step", "as JSON; a step begins when train_step is called"},
	},
	"whatif": {
		{"gputrace whatif result --device-memory 12GiB", "would it fit, and if not, at which step and line does it fail"},
		{"gputrace whatif result --expandable-segments --json", "the peak with expandable segments, as JSON"},
	},
	"fragments": {
		{"gputrace fragments result --at peak", "how much reserved memory cannot be used, which blocks cause that, and which setting would help"},
		{"gputrace fragments result --at oom --json", "the same for the request that failed, as JSON"},
	},
	"summary": {
		{"gputrace summary -p 4242", "what torch.cuda.memory_summary() prints in the process, now"},
		{"gputrace summary result --json", "the keys of torch.cuda.memory_stats(), as of the end of a recording"},
	},
	"check": {
		{"gputrace check result --max-peak 10GiB --no-leaks --no-oom",
			"whether the recording stays within limits; the exit code is 4 if not"},
		{"gputrace check result --baseline main/peak.pb.gz --tolerance 5% --junit memory.xml",
			"whether a line needs more than on the main branch"},
	},
	"export": {
		{"gputrace export result/trace.gputrace -f pprof --at peak", "a profile of the peak, peak.pb.gz"},
		{"gputrace export trace.gputrace -f pprof --from 10s --to 20s -o range.pb.gz", "what was allocated in between and is in use at 20 s"},
	},
	"diff": {
		{"gputrace diff old/trace.gputrace new/trace.gputrace --at peak", "how the peaks differ, by Python line"},
		{"gputrace diff result/trace.gputrace --at 10s --at 60s --by function", "what is in use at 60 s and was not at 10 s"},
		{"gputrace diff monday/inuse.pb.gz tuesday/inuse.pb.gz -f pprof -o diff.pb.gz", "a profile of the difference, for go tool pprof"},
	},
	"dump": {
		{"gputrace dump -p 4242", "every segment, block and inactive split, as text"},
		{"gputrace dump -p 4242 -f snapshot -o map.pickle", "the same for pytorch.org/memory_viz"},
	},
	"who": {
		{"gputrace who -p 4242 --top 5", "the five that hold the most"},
		{"gputrace who -p 4242 --by module", "by module, with its parameters, gradients and buffers"},
	},
	"agent": {
		{"sudo gputrace agent", "every GPU process of this machine, at http://127.0.0.1:9409"},
		{"gputrace agent --config agent.yaml --check", "whether a configuration can be used"},
	},
	"serve": {
		{"gputrace serve runs", "the recordings in the folder runs, with their verdicts, for a browser"},
		{"gputrace serve runs --listen 127.0.0.1:8080", "at an address that stays the same"},
	},
	"doctor": {
		{"sudo gputrace doctor", "whether tracing works on this machine, and what to do if not"},
		{"sudo gputrace doctor -p 4242", "what would be probed in process 4242, with a one-second test"},
	},
	"mcp": {
		{"gputrace mcp", "the command line of a server, for a client's configuration"},
		{"gputrace mcp --allow-record --folder recordings", "record without asking each time, into recordings"},
	},
	"completion": {
		{"source <(gputrace completion bash)", "for this shell; in ~/.bashrc, for every shell"},
		{"gputrace completion fish > ~/.config/fish/completions/gputrace.fish", "in every fish"},
	},
	"man": {
		{"gputrace man | man -l -", "read the manual"},
	},
	"help": {
		{"gputrace help who", "what who can do"},
	},
	"version": {
		{"gputrace version --json", "for a program to read"},
	},
}
