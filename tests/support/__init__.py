"""What tests of several folders share, one folder by subject; nothing in it is a test.

=================  ================================================================================
``eventually``     waiting for a condition, with a deadline: the only way in which tests wait
``kernels``        the kernels under test, and their modules
``lines``          the lines that a call executes, a measure of work that no clock disturbs
``growing``        a file that other processes append lines to
``slices``         time slices of one step each
``parsed``         source files as trees, parsed once for all rules about them
``built``          libraries in C, built by the first test that needs them
``programs``       the Java, Go and Node.js programs of ``tests/interop``, built once per checkout
``prepared``       the list of all builds, which `tools/prepare.py` makes beside the tests
``workers``          processes that share the tests of a run, more of them while it is ``idle``
``browser``        Chromium, driven by Playwright
``bare_python``    an interpreter that has only some packages
``spark_versions`` another PySpark than the installed one
``servers/``       processes and brokers: ``kerolox`` (``command``, ``up``, both ``forked``),
                   Java's (``clusters``, ``software``), Spark's (``sparks``), those of a few lines
                   (``fake_broker`` in the test's loop, ``threaded_broker`` for blocking clients);
                   ``probe`` examines a server beside a test, ``counted`` counts the server's work
``clients/``       what asks them: ``requests`` (fields and bodies), ``peer`` (asyncio), ``raw``
                   (sockets and frames), ``spark`` (topics for Spark); ``delays`` and
                   ``transactions`` are loads whose outcome is judged at the end
``stores/``        stores without a server: ``bench`` (a kernel), ``message_store`` (the Python
                   store), ``inspected`` (one for ``kerolox store``), ``golden`` (written by Java),
                   ``memory`` (folders that are on no disk), ``read_model`` (what a read
                   gives), ``rebuilding`` (a job's steps)
``faults/``        what goes wrong with them: ``shim`` (calls that fail or kill), ``crashing`` and
                   ``crash_scenario`` (kills and losses of power), ``small_disk``,
                   ``cancelling`` (at each await), ``proxy`` (TCP that misbehaves), ``network``
                   (hosts with packets that are late or lost), ``resets``, ``hand_loop``
=================  ================================================================================
"""
