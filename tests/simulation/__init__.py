"""A whole cluster in one process, on one virtual clock, from one seed.

Name servers, a master, slaves, producers and consumers are our own code. Their event loop, clocks,
sockets, threads and disks belong to the test. One number decides everything that happens, so a
failure repeats exactly. See ``docs/design/simulation.md``.

======================  ==========================================================================
``patches.py``          :class:`Patches`: what is replaced while a simulation runs, and put back
``process.py``          :class:`Process`: a simulated process: name, host, clock, alive or not;
                        :func:`current`: whose code runs now
``trace.py``            :class:`Trace`: each step that matters, as a running hash and the last lines
``loop.py``             :class:`SimulatedLoop`: virtual time, processes that pause, stall and die
``network.py``          :class:`Network`: connections and listening sockets; links with faults
``disk.py``             :class:`Disk`: the folder of one process; what is synced and what is not
``threads.py``          the store's threads as steps of the loop
``cluster.py``          :class:`Cluster`: start, stop, kill, crash, pause of each role
``history.py``          :class:`History`: what clients sent, were told and received
``workload.py``         clients that send, consume, end transactions, and write the history
``checks.py``           :func:`check`: what must hold after a run; gives a list of faults
``check_pops.py``       the part of it for groups that pop
``check_timer.py``      the part of it for messages for a moment
``given.py``            when brokers gave out what is popped, where they reset offsets, noted in the
                        history
``pace.py``             how often idle parts look whether there is something to do
``scenario.py``         from a seed: which cluster, which settings, which faults when
``run.py``              :func:`run_seed`: one seed from start to verdict
``bugs.py``             deliberate bugs; each must be found. ``pop_bugs.py``, ``timer_bugs.py``:
                        those in pops and the timer
======================  ==========================================================================

What the parts owe to each other:

**Owner.** Every task and callback runs in a ``contextvars`` context; :func:`process.current` reads
its process there, and whatever a process schedules inherits it. Nothing else tells processes apart.

**Time.** ``loop.time()`` is virtual and common to all (starts at 1,000.0 s); it moves only while
nothing is ready. The functions of ``time`` (``time``, ``time_ns``, ``monotonic``,
``monotonic_ns``, ``perf_counter``, ``thread_time`` ...) give the clock of the current process,
which may jump (``Process.clock``). ``time.sleep`` of a simulated process stalls it.

**Kinds of standstill.** ``Process.stall(seconds)``: the process does nothing for so long, as in a
system call that blocks; what is due waits. A blocking call of a slow disk calls it.
``Process.pause()`` and ``resume()``: the same until told (SIGSTOP).

**Death.** ``Process.kill()`` is kill -9: none of its callbacks runs any more, its tasks stay
referenced until the end of the run so that no ``finally`` of them runs early, its connections are
closed for the others. Then the cluster calls ``Disk.killed()``: descriptors are closed, locks are
free, written bytes stay (page cache). ``Disk.crashed()`` is the same, and what was not synced is
lost, in whole or by pages, as the seed says.

**Disk.** ``Disk(root: Path, random: random.Random, trace: Trace)``; one for each broker and name
server, its ``root`` below a folder on tmpfs; a restart of a process keeps its disk.
``disk.install(patches)`` (once for a run, a function of the module: ``install(patches, disks)``)
replaces what the store and the tables use of ``os``, ``open`` and ``pathlib``. An operation of a
path is for the disk whose root it lies below; others go through. Knobs, all may change at any
time: ``sync_seconds`` (a sync takes so long: a thread's step ends later, a call on the loop stalls
the process), ``is_full`` (writes that need room raise ``ENOSPC``), ``fails`` (``EIO`` of syncs).
``disk.is_off``: set at the end of a run; each operation raises ``OSError``.

**Threads.** ``threads.install(patches)``: ``StoreThread.start``, ``wake`` and ``stop`` schedule
``run_once`` on the running loop by ``call_later``, in the context of their process, after
``pause_seconds()`` or a wake-up plus a delay that ``Process.random`` draws. Locks and events of
``threading`` stay; nothing may wait. ``asyncio.to_thread`` is the loop's: a step later.

**Randomness.** ``random.Random`` objects are handed down from the seed: scenario, network, each
process and each disk have their own. The global ``random``, ``os.urandom``, ``uuid``,
``secrets``, ``os.getpid`` are patched to be the current process's.

**Trace.** ``trace.add(text)``: virtual time, process and text are hashed and kept in a ring. No
addresses of objects, no real times, no paths above ``root``.

**History and checks.** :class:`history.History` is plain data. ``checks.check(history, cluster)``
runs when faults are healed and the cluster is at rest, brokers still open: it may read their
stores (``cluster.brokers[name].parts.store``) and returns ``list[str]``, empty when all is well.
"""
