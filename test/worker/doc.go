// Command worker works a region on the orders of a test: one line in, one line
// out. A worker in another language that speaks the same lines can take its
// place in every scenario, alone or mixed.
//
// # Lines
//
// An order is one line of words separated by single spaces; a path holds no
// space. Each order is answered by exactly one line, in the order asked:
//
//	ok [FIELD...]
//	refused asked=BYTES held=BYTES limit=BYTES
//	error CODE TEXT...
//
// A FIELD is NAME=VALUE unless said otherwise below. CODE is one of damaged,
// full, notheld, device, evicted, closed, readonly, nospace, size, foreign,
// version, symlink, irregular, owner, init, limits, usage (the line itself is
// wrong) and other. TEXT is for people.
//
// At the end of input, and at quit, the worker leaves all its slots, closes the
// region and exits with status 0. A slot is never left by any other exit.
//
// Numbers are decimal. DEV is a device's number, KIND one of context, module,
// data, overhead. "The slot" is the one claimed last and not left.
//
// # Orders
//
//	open PATH [DEV=BYTES]...    attach, making the region if need be, bringing these limits
//	    ok role=ROLE pid=PID differ=DEV,...   ROLE: fast, waited, helped, initialiser; PID as the
//	                                          worker sees it; differ: whose limit is another one
//	view PATH                   attach to look only
//	    ok pid=PID
//	claim NAME                  claim a slot
//	    ok slot=N
//	claims N                    claim N slots at once, leave them all
//	    ok slots=N              or error full
//	charge DEV KIND BYTES       charge the slot
//	    ok | refused
//	book DEV KIND BYTES         charge without regard to the limit
//	    ok
//	return DEV KIND BYTES
//	    ok
//	leave                       leave the slot
//	    ok
//	reap                        give back what the dead hold
//	    ok slots=N
//	used DEV                    what is granted
//	    ok bytes=BYTES
//	limit DEV                   what may be granted
//	    ok bytes=BYTES          or ok bytes=none
//	limit DEV BYTES             set it
//	    ok
//	holdings DEV                who holds what; a field for each slot, the numbers in bytes
//	    ok SLOT:TOTAL:CONTEXT:MODULE:DATA:OVERHEAD...
//	processes                   who has a slot; a field for each
//	    ok SLOT:PID:HOSTPID:NAME:alive|dead...
//	counters
//	    ok reaped=N refused=N helped=N claims=N fast=N
//	lose [FILE]                 close every descriptor of the region, as a program that closes all
//	                            it finds in /proc/self/fd would; with FILE, let FILE have their numbers
//	    ok closed=N
//	touch                       open and close the region's file once, behind the library's back
//	    ok
//	exhaust                     leave the process no free descriptor
//	    ok
//	gate                        wait until descriptor 3 ends, so that many begin at one moment
//	    ok
//	quit
//	    ok
//
// # Work that goes on
//
// These answer at once with ok and go on until the next line arrives, or the
// input ends. That line is carried out after the work has ended.
//
//	churn DEV,... SEED BYTES    charge and return pieces of at most BYTES at random, of all kinds,
//	                            without pause; a refusal is no error. In the end, return them all
//	threads N churn ...         the same in N threads on the one slot
//	reaper                      reap in a loop
//	watch DEV,... BYTES         look in a loop: never more than BYTES granted, totals right
//	stop                        what the work came to, since the last stop
//	    ok ops=N refused=N longest=NS
//	                            or the first error of the work. longest is the longest time any
//	                            single operation took, that of the orders above included
package main
