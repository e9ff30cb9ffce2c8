/* The end of a process (docs/protocols.md, *Liveness*): what it held goes back when the driver has freed it, not before.
 *
 * PROCESSES hold memory of a driver, one slot each. Each may have a fork child, which has its files of the driver, and may be killed,
 * exit, or become another program, at any moment. The kernel takes an end apart into steps, between which any other process may run: mappings
 * go, the record locks go, the open files are released (in the reverse order: the driver's, and after them the one of which only a
 * mapping was left), and then the process is a zombie. REAPERS look at each slot, one question after the other, and give back what
 * the dead held. Every second process cannot be seen by its PID: reapers have only its locks. What a reaper does to the accounts
 * is in ledger.pml.
 */

#ifndef PROCESSES
#define PROCESSES 2
#endif
#ifndef REAPERS
#define REAPERS 1
#endif

#define RUNS   0		/* what /proc says of a process */
#define EXITS  1		/* it has begun to end */
#define ENDED  2		/* a zombie, or gone */

byte state[PROCESSES];
bool lock[PROCESSES];		/* the record lock on the slot's first byte */
byte keep[PROCESSES];		/* how many processes map the open file that has the second byte locked */
bool mapped[PROCESSES];		/* the process itself has the region mapped */
byte files[PROCESSES];		/* how many processes have the driver's files: it frees the memory with the last */
bool claimed[PROCESSES];	/* the slot is taken */
bool left[PROCESSES];		/* its owner has said that it ends */
byte granted;			/* what the ledger has granted: one for each process that holds its memory */

byte deaths;			/* that the ring has */
byte killed;			/* not in the region: processes whose end was no orderly one */

#define seen(n) ((n) % 2 == 0)

/* The last process that has an open file gone: the kernel releases it. */
inline release_driver(n) { files[n]-- }
inline release_keep(n)   { keep[n]-- }

inline give_back(n)
{
	atomic {
		assert(files[n] == 0);			/* never while the driver has it */
		if
		:: claimed[n] ->
		   claimed[n] = false; granted--;
		   if :: !left[n] -> deaths++ :: else fi
		:: else
		fi
	}
}

/* A fork child, until it ends or becomes another program. */
proctype child(byte parent)
{
	release_driver(parent);
	release_keep(parent)
}

proctype process(byte me)
{
	bool kept;

	/* It claims a slot, maps what keeps it, and only then does the driver give it memory. Where that mapping cannot be had, the
	 * process has only its PID, and neither fork children nor another program in its place are covered. */
	atomic {
		claimed[me] = true; lock[me] = true; mapped[me] = true; granted++; files[me] = 1;
		if
		:: kept = true; keep[me] = 1
		:: seen(me)
		fi
	}
	if
	:: atomic { kept -> files[me]++; keep[me]++; run child(me) }
	:: skip
	fi;
	if
	:: lock[me] = false						/* the program closes a descriptor that is not its own */
	:: skip
	fi;
	if
	::								/* exit: the library's last words */
#ifdef EXIT_RETURNS
	   give_back(me);
#else
	   left[me] = true;
#endif
	   state[me] = EXITS
	:: atomic { killed++; state[me] = EXITS }
	:: atomic { kept -> killed++ }					/* exec */
	fi;
	mapped[me] = false;
#ifdef KEEP_FIRST
	if :: kept -> release_keep(me) :: else fi;
#endif
	lock[me] = false;
	release_driver(me);
#ifndef KEEP_FIRST
	if :: kept -> release_keep(me) :: else fi;
#endif
	atomic {
		if
		:: state[me] == EXITS -> state[me] = ENDED
		:: else							/* another program runs */
		fi;
		kept = false
	}
}

/* The questions of docs/protocols.md, *Liveness*, one by one. */
inline ask(n)
{
	dead = claimed[n];
	if :: dead && lock[n] -> dead = false :: else fi;
#ifndef KEEP_UNASKED
	if :: dead && keep[n] > 0 -> dead = false :: else fi;
#endif
	if
	:: dead && seen(n) ->
	   s = state[n];
	   if
	   :: s == ENDED
#ifdef EXITING_IS_DEAD
	   :: s == EXITS
#endif
	   :: else ->
	      dead = !mapped[n];
#ifndef UNMAPPED_ONCE
	      if :: dead && state[n] == EXITS -> dead = false :: else fi
#endif
	   fi
	:: else
	fi;
	s = 0
}

proctype reaper()
{
	byte n, s;
	bool dead;

	do
	:: n = 0;
	   do
	   :: n < PROCESSES ->
	      ask(n);
	      if :: dead -> give_back(n) :: else fi;
	      n++
	   :: else -> break
	   od
	:: break
	od;
	atomic { n = 0; dead = false }
}

init
{
	byte n, s;
	bool dead;

	atomic {
		for (n : 0 .. PROCESSES - 1) { run process(n) }
		for (n : 1 .. REAPERS) { run reaper() }
	}
	_nr_pr == 1;
	/* When all have ended, one look gives back all that is left, and nothing that was not an orderly end is lost to the ring. */
	for (n : 0 .. PROCESSES - 1) {
		ask(n);
		if :: dead -> give_back(n) :: else fi
	}
	assert(granted == 0 && deaths == killed)
}
