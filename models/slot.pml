/* Liveness (docs/protocols.md): a slot is claimed, left, and freed after a death; the kernel says who lives.
 *
 * PROCESSES want one slot, ROUNDS times each, and may die before any step; REAPERS free it for the dead, and may be
 * stopped anywhere. Slots share nothing, so one will do. What a reaper does to the accounts before it frees the slot is
 * in ledger.pml.
 */

#ifndef PROCESSES
#define PROCESSES 3
#endif
#ifndef ROUNDS
#define ROUNDS 2
#endif
#ifndef REAPERS
#define REAPERS 2
#endif

#define FREE    0
#define JOINING 1
#define ACTIVE  2
#ifdef NO_GENERATION
#define STATUS(gen, state) (state)
#else
#define STATUS(gen, state) ((gen) * 4 + (state))
#endif
#define gen(s)   ((s) / 4)
#define state(s) ((s) % 4)

byte status = STATUS(0, FREE);
byte lock;			/* the record lock on the slot's byte: who holds it, or 0 */

byte owner;			/* not in the region: the living process that believes the slot is its own, or 0 */

#define OR_DIE :: goto dying

inline try_lock()
{
	if :: d_step { ok = (lock == 0); if :: ok -> lock = me :: else fi } OR_DIE fi
}

inline drop_lock()
{
	d_step { if :: lock == me -> lock = 0 :: else fi }
}

inline take_status()		/* CAS(status, (gen, FREE), (gen+1, JOINING)) */
{
	if
	:: d_step {
		ok = (status == s);
		if
		:: ok -> assert(owner == 0); owner = me; status = STATUS(gen(s) + 1, JOINING)
		:: else
		fi
	   }
	   OR_DIE
	fi
}

proctype process(byte me)
{
	byte s, round;
	bool ok;

	do
	:: round < ROUNDS ->
	   round++;
	   s = status;
	   if :: state(s) != FREE -> goto next :: else fi;
#ifdef CLAIM_BEFORE_LOCK
	   take_status();
	   if :: !ok -> goto next :: else fi;
	   try_lock();
#else
	   try_lock();
	   if :: !ok -> goto next :: else fi;
	   take_status();
	   if :: !ok -> drop_lock(); goto next :: else fi;
#endif
	   s = STATUS(gen(s) + 1, ACTIVE);
	   if :: status = s OR_DIE fi;
	   assert(status == s);					/* nobody frees, or takes, the slot of the living */
	   if
	   :: goto out						/* lives on */
	   :: d_step { assert(status == s); status = STATUS(gen(s), FREE); owner = 0 }	/* leaves */
	   OR_DIE
	   fi;
	   if :: drop_lock() OR_DIE fi;
next:
	   atomic { s = 0; ok = false }
	:: else -> break
	od;
	goto out;
dying:
	atomic {
		drop_lock();
		if :: owner == me -> owner = 0 :: else fi
	}
out:
	atomic { s = 0; round = 0; ok = false }
}

/* Dead: claimed, and then found unlocked. */
#ifdef LOCK_BEFORE_STATUS
#define ask() unlocked = (lock == 0); s = status
#else
#define ask() s = status; unlocked = (lock == 0)
#endif

proctype reaper()
{
	byte s;
	bool unlocked;

	do
	:: ask();
	   if
	   :: state(s) != FREE && unlocked ->
	      d_step {
		if
		:: status == s -> assert(owner == 0); status = STATUS(gen(s), FREE)
		:: else
		fi
	      }
	   :: else
	   fi;
	   atomic { s = 0; unlocked = false }
	:: break
	od
}

init
{
	byte n;

	atomic {
		for (n : 1 .. PROCESSES) { run process(n) }
		for (n : 1 .. REAPERS) { run reaper() }
	}
	_nr_pr == 1;
	/* A slot without an owner is without a lock: free, or there for the next reaper. */
	assert(lock == owner && (owner == 0 || state(status) == ACTIVE))
}
