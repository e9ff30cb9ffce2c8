// Command worker uses a region as a test orders it to: one line in, one line out. A
// worker in another language that obeys the same orders (check/programs/cworker) can take its
// place in every test.
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
// A FIELD is NAME=VALUE unless said otherwise below. CODE is one of damaged, full,
// locked, notheld, device, evicted, closed, readonly, nospace, size, foreign, version,
// symlink, irregular, owner, init, limits, violated (by the work of observe), usage (the
// line itself is wrong) and other. TEXT is for people.
//
// At the end of input, and at quit, the worker leaves all its slots, closes the
// region and exits with status 0. A slot is never left by any other exit.
//
// Numbers are decimal. DEV is a device's number, KIND one of context, module,
// data, overhead. "The slot" is the one claimed last and not left.
//
// # Orders
//
//	open PATH [DEV=BYTES]...    attach, making the region if need be, with these limits
//	    ok role=ROLE pid=PID differ=DEV,...   ROLE: fast, waited, helped, initialiser; PID in the
//	                                          worker's namespace; DEV: devices with another limit
//	readonly PATH               attach for reading only
//	    ok pid=PID
//	claim NAME                  claim a slot
//	    ok slot=N
//	claims N                    claim N slots at once, leave them all
//	    ok slots=N              or error full
//	charge DEV KIND BYTES       charge the slot
//	    ok | refused
//	force DEV KIND BYTES        charge without regard to the limit; in C only
//	    ok
//	return DEV KIND BYTES
//	    ok
//	leave                       leave the slot
//	    ok
//	reap                        reap the slots of dead processes
//	    ok slots=N
//	used DEV                    what is granted in all
//	    ok bytes=BYTES
//	limit DEV                   what may be granted in all
//	    ok bytes=BYTES          or ok bytes=none
//	limit DEV BYTES             set it
//	    ok
//	holdings DEV                what each slot holds; a field for each, the numbers in bytes
//	    ok SLOT:TOTAL:CONTEXT:MODULE:DATA:OVERHEAD[:best-effort]...
//	processes                   the processes that have slots; a field for each
//	    ok SLOT:PID:HOSTPID:NAME:alive|dead...
//	counters
//	    ok retries=N best=N reaped=N refused=N helped=N claims=N fast=N
//	lose [FILE]                 close every descriptor of the region, as a program that closes all in
//	                            /proc/self/fd; with FILE, open FILE in their place
//	    ok closed=N
//	touch                       open and close the region's file, which drops the record locks
//	    ok
//	become PATH [WORD]...       become another program, with these arguments; it answers itself
//	exhaust                     leave the process no free descriptor
//	    ok
//	gate                        wait for the end of descriptor 3, so that many workers go on at once
//	    ok
//	quit
//	    ok
//
// # Background work
//
// These orders answer ok at once. The work goes on until the next line arrives or the
// input ends, and has ended before that line is carried out.
//
//	churn DEV,... SEED BYTES    charge and return pieces of at most BYTES at random, of all kinds,
//	                            without pause; a refusal is no error. In the end, return them all
//	threads N churn ...         the same in N threads on the one slot
//	reaper                      reap in a loop
//	observe DEV,... BYTES       check readings in a loop: at most BYTES granted, totals right
//	stop                        the results of the work since the last stop
//	    ok ops=N refused=N longest=NS
//	                            or the first error of the work. longest is the time of the longest
//	                            operation, including those of the orders above
package main
