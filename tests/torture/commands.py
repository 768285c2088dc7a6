def case(bench,number):
    raise SystemExit
