from app_toolkit.cli.main import main

main()
