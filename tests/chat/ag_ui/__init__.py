import pytest

pytest.importorskip("ag_ui.core", reason="ag-ui-protocol is not installed")
