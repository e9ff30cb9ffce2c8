/* Initialisation (docs/protocols.md): one winner, nobody waits for a corpse.
 *
 * PROCESSES race for a new file. Each may die before any write; each may be stopped anywhere, and wake up long after the
 * region is COMPLETE. The wait of 5 ms has no clock here: a process that finds IN_PROGRESS may help at any later moment,
 * also while the initialiser is alive. At the end one more process comes, cannot die, and must get in.
 */

#ifndef PROCESSES
#define PROCESSES 3
#endif

#define UNINIT      0
#define IN_PROGRESS 1
#define COMPLETE    2

#define MAGIC 1

byte state = UNINIT;
byte magic, size;		/* fixed: the same from everybody */
byte limit[2];			/* as the process's environment has it: by CAS from zero */

byte elected, completed, attached, died;

#define OR_DIE :: mortal -> goto dying

inline swap(location, old, new)
{
	d_step { ok = (location == (old)); if :: ok -> location = (new) :: else fi }
}

inline store(location, value)
{
	d_step { assert(attached == 0 || location == (value)); location = (value) }	/* nothing changes after COMPLETE */
}

inline offer(location, value)
{
#ifdef PLAIN_STORE
	if :: store(location, value) OR_DIE fi
#else
	if :: d_step { swap(location, 0, value); assert(attached == 0 || !ok) } OR_DIE fi
#endif
}

#ifdef OTHER_VERSION
#define my_magic brings
#else
#define my_magic MAGIC
#endif

inline publish()
{
	if
	:: d_step { swap(state, IN_PROGRESS, COMPLETE); if :: ok -> completed++ :: else fi }
	   OR_DIE
	fi
}

inline initialise()
{
#ifdef EARLY_COMPLETE
	publish();
#endif
	offer(limit[0], brings);
	offer(limit[1], brings);
	if :: store(size, 1) OR_DIE fi;
	if :: store(magic, my_magic) OR_DIE fi;
#ifndef EARLY_COMPLETE
	publish()
#endif
}

proctype process(byte brings; bool mortal)
{
	bool ok;

	if
	:: state == COMPLETE -> goto attach			/* the fast path */
	:: else
	fi;
	if
	:: d_step { swap(state, UNINIT, IN_PROGRESS); if :: ok -> elected++ :: else fi }
	   OR_DIE
	fi;
	if
	:: ok -> initialise()
	:: else ->
	   if
	   :: state == COMPLETE
#ifndef NO_TAKEOVER
	   :: state == IN_PROGRESS -> initialise()
#endif
	   fi
	fi;
attach:
	atomic {
		assert(state == COMPLETE && magic != 0 && size != 0 && limit[0] != 0 && limit[1] != 0);
		attached++
	}
	goto out;
dying:
	died++;
out:
	atomic { brings = 0; ok = false }
}

init
{
	byte n;

	atomic { for (n : 1 .. PROCESSES) { run process(n, true) } }
	_nr_pr == 1;
	run process(PROCESSES + 1, false);
	_nr_pr == 1;
	assert(attached + died == PROCESSES + 1);
	assert(elected == 1 && completed == 1)
}
